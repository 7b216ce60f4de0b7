"""A time-delay network: convolutions over time, each looking further than the one before."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from unisono.models.layers import convolution

_FRAMES = 3


class TDNN(nn.Module):
    """ReLU layers over frames t - s_l, t, t + s_l of the layer below, then the states' logits.

        h_0,t    = x_t
        h_l,t    = dropout(relu(norm(W_l [h_{l-1, t-s_l}, h_{l-1, t}, h_{l-1, t+s_l}] + b_l)))
        logits_t = W_{L+1} h_L,t + b_{L+1}

    with the steps s_l of `steps`, the last one again for further layers. A frame's logits depend
    on `left` = `right` = sum s_l frames each side, and on nothing else: whether frames come in
    chunks or as a whole utterance changes no posterior. First parameters are drawn as in `DNN`.

    Attributes:
        left: Frames that must stand before the first one to classify.
        right: Frames that must stand behind the last one.
    """

    def __init__(
        self,
        *,
        inputs: int,
        outputs: int,
        hidden: Sequence[int],
        steps: Sequence[int] = (1, 2, 3),
        dropout: float = 0.0,
        batch_norm: bool = False,
        seed: int = 0,
    ) -> None:
        """Builds the network.

        Args:
            inputs: Numbers in a frame.
            outputs: States to tell apart.
            hidden: Units of each hidden layer.
            steps: Frames from one neighbour to the next that each layer looks at.
            dropout: Share of hidden units dropped in training.
            batch_norm: Normalise each hidden layer over the minibatch.
            seed: Seed of the first parameters.
        """
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        layers: list[nn.Module] = []
        width, reach = inputs, 0
        for place, units in enumerate(hidden):
            step = steps[min(place, len(steps) - 1)]
            variance = 2.0 / (_FRAMES * width)
            layers.append(
                convolution(width, units, _FRAMES, step, variance, generator, bias=not batch_norm)
            )
            if batch_norm:
                layers.append(nn.BatchNorm1d(units))
            layers.append(nn.ReLU())
            if dropout > 0:
                layers.append(nn.Dropout(dropout))
            width, reach = units, reach + step
        layers.append(convolution(width, outputs, 1, 1, 1.0 / width, generator))
        self.layers = nn.Sequential(*layers)
        self.left = self.right = reach

    def forward(self, x: Tensor) -> Tensor:
        """Maps chunks (N x (left + T + right) x inputs) to logits (N x T x outputs)."""
        logits: Tensor = self.layers(x.transpose(1, 2)).transpose(1, 2)
        return logits
