"""Recurrent networks: LSTM with projection, and bidirectional LSTM with a bottleneck."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from unisono.errors import UserError
from unisono.models.layers import linear

# cuDNN copies weights that do not lie one behind the other; a step takes much longer than that.
warnings.filterwarnings("ignore", message="RNN module weights are not part of single contiguous")


class ProjectedLSTM(nn.Module):
    """One LSTM layer, with a projection of its output where asked for.

        [i, f, g, o]_t = W x_t + b + V r_{t-1}
        c_t = sigmoid(f_t) c_{t-1} + sigmoid(i_t) tanh(g_t)
        r_t = P (sigmoid(o_t) tanh(c_t)),        r_{-1} = c_{-1} = 0,  P = I without a projection

    `nn.LSTM` computes the same, and its kernels are used: cuDNN's on a GPU, oneDNN's on a CPU,
    which has none with a projection. W, V and P are linear layers with inputs and outputs of their
    own, which natural gradient needs: where a layer has hooks, W is applied to all frames at once,
    V and P frame by frame.

    First parameters: normal with variance 1 / fan_in; b is 0 but for the forget gate, whose 1
    lets a new network remember.
    """

    def __init__(
        self, inputs: int, cells: int, projection: int, generator: torch.Generator
    ) -> None:
        """Builds the layer.

        Args:
            inputs: Numbers in a frame.
            cells: Cells, each with its gates.
            projection: Numbers in r; 0: as many as cells, and no projection.
            generator: Of the first parameters.
        """
        super().__init__()
        self.outputs = projection or cells
        self.inward = linear(inputs, 4 * cells, 1.0 / inputs, generator)
        self.recurrent = linear(self.outputs, 4 * cells, 1.0 / self.outputs, generator, bias=False)
        self.projection: nn.Module = nn.Identity()
        if projection > 0:
            self.projection = linear(cells, projection, 1.0 / cells, generator, bias=False)
        with torch.no_grad():
            self.inward.bias[cells : 2 * cells] = 1.0

    def forward(self, x: Tensor) -> Tensor:
        """Maps frames (N x T x inputs) to outputs (N x T x outputs)."""
        return together(x, [[self]]) if self.has_kernel(x) else self._frame_by_frame(x)

    @property
    def cells(self) -> int:
        """How many there are."""
        return self.inward.out_features // 4

    def has_kernel(self, x: Tensor) -> bool:
        """Whether torch's kernels can compute the layer where x is."""
        available = x.is_cuda or isinstance(self.projection, nn.Identity)
        return available and not any(map(_has_hooks, self.children()))

    def weights(self) -> list[Tensor]:
        """The parameters in the order of torch's kernels, which have a second bias."""
        bias = self.inward.bias
        found = [self.inward.weight, self.recurrent.weight, bias, torch.zeros_like(bias)]
        if isinstance(self.projection, nn.Linear):
            found.append(self.projection.weight)
        return found

    def _frame_by_frame(self, x: Tensor) -> Tensor:
        driven = self.inward(x)
        r = x.new_zeros(len(x), self.outputs)
        c = x.new_zeros(len(x), self.cells)
        outputs = []
        for drive in driven.unbind(1):
            i, f, g, o = (drive + self.recurrent(r)).chunk(4, 1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            r = self.projection(o.sigmoid() * c.tanh())
            outputs.append(r)
        return torch.stack(outputs, 1)


def together(x: Tensor, layers: Sequence[Sequence[ProjectedLSTM]]) -> Tensor:
    """Maps frames to the outputs of layers one above the other, by one call of torch's kernels.

    Each layer is one that reads forwards, or a pair with one that reads backwards. cuDNN computes
    layers and directions beside each other, as far as one does not wait for the other.
    """
    first, directions = layers[0][0], len(layers[0])
    weights = [weight for layer in layers for each in layer for weight in each.weights()]
    if x.is_cuda and torch.is_autocast_enabled("cuda"):  # which knows no bfloat16 here
        x, *weights = (t.to(torch.get_autocast_dtype("cuda")) for t in (x, *weights))
    count = len(layers) * directions
    start = (x.new_zeros(count, len(x), first.outputs), x.new_zeros(count, len(x), first.cells))
    with torch.autocast("cuda", enabled=False):
        options = (True, len(layers), 0.0, first.training, directions == 2, True)
        outputs: Tensor = torch.lstm(x, start, weights, *options)[0]
    return outputs


def _has_hooks(module: nn.Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks)


class RecurrentModel(nn.Module):
    """What `LSTM` and `BLSTM` have in common.

    Attributes:
        left: Frames before the first one to classify.
        right: Frames behind the last one.
    """

    def __init__(self, hidden: Sequence[int], left: int, right: int) -> None:
        """Checks the layers; subclasses make them."""
        super().__init__()
        if not hidden:
            raise UserError("a recurrent network without layers: give the units of one or more")
        self.left, self.right = left, right


class LSTM(RecurrentModel):
    """LSTM layers with projection, one above the other, then the logits of the states.

    A frame is classified `right` frames after it was read (the label delay), so that the network
    knows a little of what follows; what came before reaches it through its state, which is 0 at
    the start of a chunk and is built up during `left` frames that are not classified.
    """

    def __init__(
        self,
        *,
        inputs: int,
        outputs: int,
        hidden: Sequence[int],
        projection: int | None = None,
        left: int = 40,
        right: int = 5,
        dropout: float = 0.0,
        seed: int = 0,
    ) -> None:
        """Builds the network.

        Args:
            inputs: Numbers in a frame.
            outputs: States to tell apart.
            hidden: Cells of each layer.
            projection: Outputs of each layer; 0: no projection; None: a quarter of its cells.
            left: Frames before the first one to classify.
            right: The label delay in frames.
            dropout: Share of each layer's outputs dropped in training.
            seed: Seed of the first parameters.
        """
        super().__init__(hidden, left, right)
        generator = torch.Generator().manual_seed(seed)
        layers: list[nn.Module] = []
        width = inputs
        for cells in hidden:
            projected = max(1, cells // 4) if projection is None else projection
            layer = ProjectedLSTM(width, cells, projected, generator)
            layers += [layer, nn.Dropout(dropout)]
            width = layer.outputs
        self.layers = nn.Sequential(*layers)
        self.logits = linear(width, outputs, 1.0 / width, generator)

    def forward(self, x: Tensor) -> Tensor:
        """Maps chunks (N x (left + T + right) x inputs) to logits (N x T x outputs)."""
        layers = [layer for layer in self.layers if isinstance(layer, ProjectedLSTM)]
        is_alike = len({(layer.cells, layer.outputs) for layer in layers}) == 1
        drops = self.training and any(isinstance(p, nn.Dropout) and p.p > 0 for p in self.layers)
        if is_alike and not drops and all(layer.has_kernel(x) for layer in layers):
            x = together(x, [[layer] for layer in layers])
        else:
            x = self.layers(x)
        logits: Tensor = self.logits(x[:, self.left + self.right :])
        return logits


class BLSTM(RecurrentModel):
    """LSTM layers that read in both directions, a linear bottleneck, the logits of the states.

    Half of a layer's units read forwards and half backwards; each sees `left` frames before, or
    `right` frames behind, the chunk to build up its state.
    """

    def __init__(
        self,
        *,
        inputs: int,
        outputs: int,
        hidden: Sequence[int],
        bottleneck: int = 256,
        left: int = 20,
        right: int = 20,
        dropout: float = 0.0,
        seed: int = 0,
    ) -> None:
        """Builds the network.

        Args:
            inputs: Numbers in a frame.
            outputs: States to tell apart.
            hidden: Units of each layer, of both directions together.
            bottleneck: Numbers between the last layer and the logits; 0: no bottleneck.
            left: Frames before the first one to classify.
            right: Frames behind the last one.
            dropout: Share of each layer's outputs dropped in training.
            seed: Seed of the first parameters.
        """
        super().__init__(hidden, left, right)
        if any(units % 2 for units in hidden):
            raise UserError(f"a blstm of {list(hidden)} units: give even numbers, half each way")
        generator = torch.Generator().manual_seed(seed)
        self.forwards, self.backwards = nn.ModuleList(), nn.ModuleList()
        width = inputs
        for units in hidden:
            self.forwards.append(ProjectedLSTM(width, units // 2, 0, generator))
            self.backwards.append(ProjectedLSTM(width, units // 2, 0, generator))
            width = units
        self.dropout = nn.Dropout(dropout)
        self.bottleneck: nn.Module = nn.Identity()
        if bottleneck > 0:
            self.bottleneck = linear(width, bottleneck, 1.0 / width, generator)
            width = bottleneck
        self.logits = linear(width, outputs, 1.0 / width, generator)

    def forward(self, x: Tensor) -> Tensor:
        """Maps chunks (N x (left + T + right) x inputs) to logits (N x T x outputs)."""
        for forwards, backwards in zip(self.forwards, self.backwards, strict=True):
            assert isinstance(forwards, ProjectedLSTM)
            assert isinstance(backwards, ProjectedLSTM)
            if forwards.has_kernel(x) and backwards.has_kernel(x):
                x = together(x, [[forwards, backwards]])
            else:
                x = torch.cat([forwards(x), backwards(x.flip(1)).flip(1)], 2)
            x = self.dropout(x)
        classified = x[:, self.left : x.shape[1] - self.right]
        logits: Tensor = self.logits(self.bottleneck(classified))
        return logits
