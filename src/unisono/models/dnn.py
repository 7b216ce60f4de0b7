"""A feed-forward network over one frame and its context: the plainest acoustic model."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from unisono.models.layers import linear


class DNN(nn.Module):
    """ReLU layers between a window of frames and the logits of the states.

    With inputs x, layers l = 1..L and the output layer L + 1:

        h_0     = x
        h_l     = dropout(relu(norm(W_l h_{l-1} + b_l)))
        logits  = W_{L+1} h_L + b_{L+1}

    `norm` is batch normalisation, where asked for; its shift stands in for b_l.

    First parameters: b = 0, and W_l is normal with mean 0. The sum W_l h_{l-1} is then symmetric
    about 0 with second moment fan_in Var[W_l] E[h_{l-1}^2], of which the ReLU passes one half.
    Var[W_l] = 2 / fan_in (He et al., 2015) therefore keeps E[h_l^2] the same from layer to layer;
    the output layer, which no ReLU follows, takes 1 / fan_in.

    All are drawn on the CPU from a generator of their own, so the same seed gives the same
    parameters on every learner and device, and the random state of the process is left alone.
    """

    def __init__(
        self,
        *,
        inputs: int,
        outputs: int,
        hidden: Sequence[int],
        dropout: float = 0.0,
        batch_norm: bool = False,
        seed: int = 0,
    ) -> None:
        """Builds the network.

        Args:
            inputs: numbers in the window of frames.
            outputs: states to tell apart.
            hidden: units of each hidden layer; none makes a linear classifier.
            dropout: share of hidden units dropped in training.
            batch_norm: normalise each hidden layer over the minibatch.
            seed: seed of the first parameters.
        """
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        layers: list[nn.Module] = []
        width = inputs
        for units in hidden:
            layers.append(linear(width, units, 2.0 / width, generator, bias=not batch_norm))
            if batch_norm:
                layers.append(nn.BatchNorm1d(units))
            layers.append(nn.ReLU())
            if dropout > 0:
                layers.append(nn.Dropout(dropout))
            width = units
        layers.append(linear(width, outputs, 1.0 / width, generator))
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        """Maps windows (N x inputs) to logits (N x outputs)."""
        logits: Tensor = self.layers(x)
        return logits
