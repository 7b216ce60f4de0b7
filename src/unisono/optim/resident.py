"""Natural gradients of many layers at once, by estimates that never leave the device."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from unisono.optim.fisher import DELTA, EPSILON, FisherEstimate
from unisono.optim.layer import Estimation, Side
from unisono.optim.natural_gradient import ALWAYS_UPDATING, MOST_FORGOTTEN
from unisono.optim.roots import inverse, inverse_root, largest, positive_part

LEAST = 1e-5  # of s, below which a direction of the new basis is damped instead of turned


class ResidentNaturalGradient:
    """`NaturalProduct` for all layers of a model in one go, without a word to the host.

    Two things stand between `OnlineNaturalGradient` and a CUDA graph: its r x r decomposition is
    done on the host, and layer after layer takes a hundred small launches. Here the sides of all
    layers (inputs and output derivatives) that have the same width are one batch, the r x r work
    of all sides is one batch of the largest rank (a smaller one has rows of zeros in its basis),
    and that work is products alone.

    **Without eigenvectors.** F = basis' core basis + rho I is the same estimate in any rotated
    basis, if core (r x r, symmetric) turns with it; `FisherEstimate` has it diagonal. Its update is
    then, with y = basis T and z = y y' as there,

        root  = z^1/2,          basis_new = z^-1/2 y,
        rho   = (tr T - tr root) / (D - rank),
        floor = max(EPSILON, DELTA max eigenvalue of root),
        core  = floor I + positive part of (root - (rho + floor) I),

    and rho is floored last: what is done there to each eigenvalue is done here to the matrix. The
    preconditioner is rows - h e basis with e = core (beta I + core)^-1; e basis is kept at hand.
    `unisono.optim.roots` has the functions, and how far they go.

    **Two kinds of step.** `gradients(..., updating=True)` also prepares an update of the estimates;
    `follow` makes it, at any time before the next call of `gradients`. So a caller may capture
    three graphs (a step, an updating step, `follow`) and let `follow` run on a stream of its own
    while the next minibatch goes forwards and backwards; `updates` says which minibatch is which.

    **Precision.** Rows are multiplied in their own dtype, and what has rank x D numbers or less is
    float64. With float32 rows it agrees with `OnlineNaturalGradient` to 1e-5; with bfloat16 rows
    to what bfloat16 holds.

    A minibatch that is not finite leaves the estimate as it was.
    """

    def __init__(
        self,
        shapes: Sequence[tuple[int, int]],
        rows: int,
        estimation: Estimation,
        *,
        mean: bool,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """Begins without estimates.

        Args:
            shapes: Inputs and outputs of each layer; each has a bias.
            rows: Rows of a minibatch, always as many.
            estimation: Ranks, period, history and smoothing.
            mean: Whether the derivatives are those of a mean over the rows.
            dtype: Of the rows.
            device: Where they are.
        """
        self._rows, self._estimation = rows, estimation
        self._factor = float(rows) if mean else 1.0
        self._eta = min(MOST_FORGOTTEN, -math.expm1(-rows / estimation.num_samples_history))
        self._t = 0
        self._groups = _group(shapes, estimation, dtype, device)
        ranks = [rank for group in self._groups for rank in group.ranks]
        dims = [group.dim for group in self._groups for _ in group.ranks]
        most = max(ranks)
        self._real = (torch.arange(most) < torch.tensor(ranks).unsqueeze(1)).double().to(device)
        self._ranks = torch.tensor(ranks, dtype=torch.float64, device=device)
        self._dims = torch.tensor(dims, dtype=torch.float64, device=device)
        self._core = torch.zeros(len(ranks), most, most, dtype=torch.float64, device=device)
        self._rho, self._power = torch.zeros(2, len(ranks), dtype=torch.float64, device=device)
        self._least = 0.5 * math.sqrt(estimation.alpha / (max(dims) + estimation.alpha))

    def updates(self) -> bool:
        """Whether the next minibatch should update the estimates; counts it."""
        after = self._t - ALWAYS_UPDATING
        self._t += 1
        return after <= 0 or after % self._estimation.update_period == 0

    @torch.no_grad()
    def begin(self, inputs: Sequence[Tensor], derivatives: Sequence[Tensor]) -> None:
        """Makes the estimates from a first minibatch of finite rows; waits for the device."""
        for group in self._groups:
            for place, layer in enumerate(group.layers):
                if group.ones:
                    rows = functional.pad(inputs[layer].float(), (0, 1), value=1.0)
                else:
                    rows = derivatives[layer].float() * self._factor
                fisher = FisherEstimate.first(rows, group.ranks[place], self._eta)
                rank = len(fisher.d)
                group.basis[place, :rank] = fisher.basis.double()
                core = self._core[group.first + place].zero_()
                core.diagonal()[:rank] = fisher.d.to(core.device)
                self._rho[group.first + place] = fisher.rho
        self._lower()

    @torch.no_grad()
    def gradients(
        self, inputs: Sequence[Tensor], derivatives: Sequence[Tensor], *, updating: bool
    ) -> list[tuple[Tensor, Tensor]]:
        """Returns the natural gradient of each layer's weight and bias, in float32.

        Args:
            inputs: The rows of each layer; **overwritten**.
            derivatives: Those of its output; **overwritten**.
            updating: Whether `follow` will be called after this.
        """
        outputs: list[Tensor] = [torch.empty(0)] * len(inputs)
        scales: list[Tensor] = [torch.empty(0)] * len(inputs)
        found: list[tuple[Tensor, Tensor]] = [(torch.empty(0), torch.empty(0))] * len(inputs)
        for group in self._groups:  # those of the derivatives come first
            if not group.ones:
                x, _, scale = self._preconditioned(group, derivatives, updating)
                for place, layer in enumerate(group.layers):
                    outputs[layer], scales[layer] = x[place], scale[place]
        for group in self._groups:
            if group.ones:
                x, ones, scale = self._preconditioned(group, inputs, updating)
                scale = scale * torch.stack([scales[layer] for layer in group.layers])
                x.mul_(scale.view(-1, 1, 1))
                ones.mul_(scale.view(-1, 1, 1))
                for place, layer in enumerate(group.layers):
                    g = outputs[layer].T
                    found[layer] = _product(g, x[place]), _product(g, ones[place]).squeeze(1)
        return found

    @torch.no_grad()
    def follow(self) -> None:
        """Updates the estimates from what the last call of `gradients` saw."""
        eta, real = self._eta, self._real
        z = torch.cat([torch.bmm(group.y, group.y.mT) for group in self._groups])
        z.diagonal(dim1=-2, dim2=-1).add_((1.0 - real) * (_trace(z) / self._ranks).unsqueeze(1))
        inverted = inverse_root(z, torch.linalg.matrix_norm(z), LEAST)
        root = torch.bmm(z, inverted)
        root = (root + root.mT) / 2
        s = root.diagonal(dim1=-2, dim2=-1)
        known = self._dims * self._rho + _trace(self._core)
        trace = eta * self._power + (1.0 - eta) * known
        rho = (trace - (s * real).sum(1)) / (self._dims - self._ranks)
        top = largest(z).sqrt()
        floor = (DELTA * top).clamp(min=EPSILON)
        unit = torch.eye(z.shape[-1], dtype=z.dtype, device=z.device)
        above = root - (rho + floor).view(-1, 1, 1) * unit
        bound = 1.01 * top + rho.abs() + floor
        core = floor.view(-1, 1, 1) * unit + positive_part(above, bound, LEAST)
        core = core * (real.unsqueeze(1) * real.unsqueeze(2))
        finite = self._power.isfinite()
        self._core.copy_(torch.where(finite.view(-1, 1, 1), core, self._core))
        self._rho.copy_(torch.where(finite, torch.maximum(rho, floor), self._rho))
        for group in self._groups:
            basis = torch.bmm(inverted[group.span], group.y)
            kept = finite[group.span].view(-1, 1, 1)
            group.basis.copy_(torch.where(kept, basis, group.basis))
        self._lower()

    def _preconditioned(
        self, group: _Group, rows: Sequence[Tensor], updating: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Returns the rows of a group, what became of the column of ones, and the scale."""
        mine = [rows[layer] for layer in group.layers]
        x = torch.stack(mine) if len(mine) > 1 else mine[0].unsqueeze(0)
        h = torch.bmm(x, group.turn.mT)
        if group.ones:
            h += group.turn_ones
        square = _square(x) + (self._rows if group.ones else 0.0)
        if updating:
            self._look(group, x, h, square)
        x = x.baddbmm_(h, group.lowered, alpha=-1.0)
        ones = 1.0 - torch.bmm(h, group.lowered_ones) if group.ones else x.new_zeros(len(x), 1, 1)
        scale = (square / (_square(x) + _square(ones))).sqrt().masked_fill(square == 0, 1.0)
        return x, ones, scale

    def _look(self, group: _Group, x: Tensor, h: Tensor, square: Tensor) -> None:
        """Keeps y = basis T and the mean power of the rows, for `follow`."""
        factor = 1.0 if group.ones else self._factor**2
        weight = self._eta / self._rows * factor
        moment = _products(h.mT, x)
        if group.ones:
            sums = h.sum(1, dtype=torch.float32).unsqueeze(2)
            moment = torch.cat([moment, sums], 2)
        rho = self._rho[group.span].view(-1, 1, 1)
        kept = torch.bmm(self._core[group.span], group.basis) + rho * group.basis
        group.y.copy_((1.0 - self._eta) * kept + weight * moment.double())
        self._power[group.span] = square.double() * (factor / self._rows)

    def _lower(self) -> None:
        """Brings what rows are multiplied by up to date."""
        alpha = self._estimation.alpha
        beta = (1.0 + alpha) * self._rho + alpha / self._dims * _trace(self._core)
        unit = torch.eye(self._core.shape[-1], dtype=torch.float64, device=self._core.device)
        smoothed = self._core + beta.view(-1, 1, 1) * unit
        bound = torch.linalg.matrix_norm(self._core) + beta
        e = unit - beta.view(-1, 1, 1) * inverse(smoothed, bound, self._least)
        for group in self._groups:
            lowered = torch.bmm(e[group.span], group.basis)
            group.turn.copy_(group.basis[:, :, : group.width])
            group.lowered.copy_(lowered[:, :, : group.width])
            if group.ones:
                group.turn_ones.copy_(group.basis[:, :, group.width].unsqueeze(1))
                group.lowered_ones.copy_(lowered[:, :, group.width :])


class _Group:
    """Sides of the same width: where they are among all sides, and what they are turned by."""

    def __init__(
        self,
        width: int,
        ones: bool,
        members: Sequence[tuple[int, int]],
        first: int,
        most: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.width, self.ones, self.first = width, ones, first
        self.dim = width + ones
        self.layers = [layer for layer, _ in members]
        self.ranks = [rank for _, rank in members]
        self.span = slice(first, first + len(members))
        count = len(members)
        wide = {"dtype": torch.float64, "device": device}
        narrow = {"dtype": dtype, "device": device}
        self.basis = torch.zeros(count, most, self.dim, **wide)  # type: ignore[call-overload]
        self.y = torch.zeros_like(self.basis)
        self.turn = torch.zeros(count, most, width, **narrow)  # type: ignore[call-overload]
        self.lowered = torch.zeros_like(self.turn)
        self.turn_ones = torch.zeros(count, 1, most, **narrow)  # type: ignore[call-overload]
        self.lowered_ones = torch.zeros(count, most, 1, **narrow)  # type: ignore[call-overload]


def _group(
    shapes: Sequence[tuple[int, int]],
    estimation: Estimation,
    dtype: torch.dtype,
    device: torch.device,
) -> list[_Group]:
    """Returns the sides of all layers in groups of the same width, derivatives first."""
    sides: dict[tuple[int, bool], list[tuple[int, int]]] = {}
    for ones in (False, True):
        for layer, (inputs, outputs) in enumerate(shapes):
            weight = torch.empty(outputs, inputs, device="meta")
            rank = estimation.rank(Side.INPUT if ones else Side.OUTPUT, weight)
            width = inputs if ones else outputs
            sides.setdefault((width, ones), []).append((layer, min(rank, width + ones - 1)))
    most = max(rank for members in sides.values() for _, rank in members)
    groups: list[_Group] = []
    first = 0
    for (width, ones), members in sides.items():
        groups.append(_Group(width, ones, members, first, most, dtype, device))
        first += len(members)
    return groups


def _square(x: Tensor) -> Tensor:
    """Returns the sum of squares of each matrix of a batch, float32."""
    norm: Tensor = torch.linalg.vector_norm(x, dim=(1, 2), dtype=torch.float32)
    return norm.square()


def _trace(a: Tensor) -> Tensor:
    return a.diagonal(dim1=-2, dim2=-1).sum(-1)


def _product(a: Tensor, b: Tensor) -> Tensor:
    """Returns a b in float32, whatever a and b are."""
    if a.is_cuda and a.dtype != torch.float32:
        return torch.mm(a, b, out_dtype=torch.float32)
    return (a @ b).float()


def _products(a: Tensor, b: Tensor) -> Tensor:
    """Returns a b of a batch in float32."""
    if a.is_cuda and a.dtype != torch.float32:
        return torch.bmm(a, b, out_dtype=torch.float32)
    return torch.bmm(a, b).float()
