"""Natural gradients of many layers, by estimates that never leave the device."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from unisono.errors import UserError
from unisono.optim.fisher import DELTA, EPSILON, FisherEstimate
from unisono.optim.layer import Estimation, Side
from unisono.optim.natural_gradient import MOST_FORGOTTEN
from unisono.optim.roots import inverse, inverse_root, largest, positive_part

LEAST = 1e-5  # of s, below which a direction of the new basis is damped instead of turned
LEAST_BFLOAT16 = 1e-3  # the same for rows that are known to three digits
WHOLE = 16  # rows are padded to a multiple of so many numbers: products like aligned rows


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Of a layer."""

    inputs: int
    outputs: int
    bias: bool = True

    def width(self, side: Side) -> int:
        """Numbers in a row, the one of the bias included."""
        return self.inputs + self.bias if side is Side.INPUT else self.outputs

    def padded(self, side: Side) -> int:
        """Numbers in a row with the zeros behind them."""
        return _whole(self.width(side))


class ResidentNaturalGradient:
    """`OnlineNaturalGradient` for all layers of a model, without a word to the host.

    Two things stand between `OnlineNaturalGradient` and a CUDA graph: its r x r decomposition is
    done on the host, and layer after layer takes a hundred small launches for it. Here the r x r
    work of all sides (inputs and output derivatives of each layer) is one batch of the largest
    rank (a smaller one has rows of zeros in its basis), and that work is products alone.

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

    **Two halves of an update.** `turn(..., updating=True)` makes the rows of one layer natural and
    keeps what an update of its estimates needs; `follow` updates those of all layers that kept
    something, at any time before the next call of `turn` for them. So both can be captured in
    graphs, and `follow` may run beside the next minibatch's passes.

    **Padding.** Rows end with zeros up to a multiple of 16 numbers, which change nothing but the
    time: a GPU multiplies rows of 10224 numbers four times as fast as those of 10217.

    **Precision.** Rows are multiplied in their own dtype, and what has rank x D numbers or less is
    float64. With float32 rows it agrees with `OnlineNaturalGradient` to 1e-5; with bfloat16 rows
    to what bfloat16 holds.

    A minibatch that is not finite leaves the estimate as it was.
    """

    def __init__(
        self,
        shapes: Sequence[Shape],
        estimation: Estimation,
        *,
        mean: bool,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """Begins without estimates; `load` brings them.

        Args:
            shapes: Of each layer.
            estimation: Ranks, history and smoothing, of which there must be some (alpha above 0);
                when to update is the caller's matter.
            mean: Whether the derivatives are those of a mean over the rows.
            dtype: Of the rows.
            device: Where they are.

        Raises:
            UserError: There is no smoothing, or a layer has rows of one number.
        """
        if estimation.alpha <= 0:
            raise UserError("natural gradient on a device: alpha is 0; give it some smoothing")
        if any(shape.width(side) < 2 for shape in shapes for side in Side):
            raise UserError("natural gradient on a device: a layer has rows of a single number")
        self.shapes = list(shapes)
        self._estimation, self._mean = estimation, mean
        self._precision = LEAST_BFLOAT16 if dtype is torch.bfloat16 else LEAST
        self._groups, self._sides = _group(self.shapes, estimation, dtype, device)
        ordered = [side for group in self._groups for side in group.sides]
        ranks, dims = [side.rank for side in ordered], [side.dim for side in ordered]
        most = max(group.rank for group in self._groups)
        self._real = (torch.arange(most) < torch.tensor(ranks).unsqueeze(1)).double().to(device)
        self._ranks = torch.tensor(ranks, dtype=torch.float64, device=device)
        self._dims = torch.tensor(dims, dtype=torch.float64, device=device)
        self._core = torch.zeros(len(ranks), most, most, dtype=torch.float64, device=device)
        self._unit = torch.eye(most, dtype=torch.float64, device=device)
        self._rho = torch.full_like(self._ranks, EPSILON)
        self._trace = torch.full_like(self._ranks, torch.nan)  # of T; NaN: nothing to follow
        alpha = estimation.alpha
        self._smoothed_least = 0.5 * math.sqrt(alpha / (max(dims) + alpha))

    @torch.no_grad()
    def load(self, estimates: Sequence[dict[Side, FisherEstimate]]) -> None:
        """Goes on from the estimates of each layer."""
        self.forget()
        for layer, pair in enumerate(estimates):
            for which, fisher in pair.items():
                side = self._sides[layer][which]
                rank = len(fisher.d)
                side.basis.zero_()[:rank, : side.dim] = fisher.basis.to(side.basis)
                core = self._core[side.place].zero_()
                core.diagonal()[:rank] = fisher.d.to(core)
                self._rho[side.place] = fisher.rho
        self._lower()

    @torch.no_grad()
    def estimate(self, layer: int, which: Side) -> FisherEstimate:
        """Returns the estimate of one side with its core diagonal; waits for the device."""
        side = self._sides[layer][which]
        core = self._core[side.place, : side.rank, : side.rank].cpu()
        d, turn = torch.linalg.eigh((core + core.T) / 2)
        basis = turn.T.to(side.basis) @ side.basis[: side.rank, : side.dim]
        return FisherEstimate(basis.float(), d, float(self._rho[side.place]))

    @torch.no_grad()
    def turn(self, layer: int, x: Tensor, g: Tensor, *, updating: bool) -> None:
        """Makes the rows of a minibatch natural: [dW, db] is then g'x.

        Args:
            layer: Which.
            x: Its inputs, padded; **overwritten**. The column of the bias is filled in here.
            g: The derivatives of its outputs, padded; **overwritten**.
            updating: Whether `follow` is to learn from them.
        """
        shape, sides = self.shapes[layer], self._sides[layer]
        if shape.bias:
            x[:, shape.inputs].fill_(1.0)
        factor = float(len(g)) if self._mean else 1.0
        scale = self._preconditioned(sides[Side.OUTPUT], g, factor, updating)
        x.mul_(scale * self._preconditioned(sides[Side.INPUT], x, 1.0, updating))

    @torch.no_grad()
    def follow(self) -> None:
        """Updates the estimates of all sides that have kept something; the others stay."""
        real, unit = self._real, self._unit
        z = torch.cat([_widened(torch.bmm(g.y, g.y.mT), len(unit)) for g in self._groups])
        z.diagonal(dim1=-2, dim2=-1).add_((1.0 - real) * (_trace(z) / self._ranks).unsqueeze(1))
        inverted = inverse_root(z, torch.linalg.matrix_norm(z), self._precision)
        root = torch.bmm(z, inverted)
        root = (root + root.mT) / 2
        s = root.diagonal(dim1=-2, dim2=-1)
        rho = (self._trace - (s * real).sum(1)) / (self._dims - self._ranks)
        top = largest(z).sqrt()
        floor = (DELTA * top).clamp(min=EPSILON)
        above = root - (rho + floor).view(-1, 1, 1) * unit
        bound = 1.01 * top + rho.abs() + floor
        core = floor.view(-1, 1, 1) * unit + positive_part(above, bound, self._precision)
        core = core * (real.unsqueeze(1) * real.unsqueeze(2))
        known = self._trace.isfinite()
        self._core.copy_(torch.where(known.view(-1, 1, 1), core, self._core))
        self._rho.copy_(torch.where(known, torch.maximum(rho, floor), self._rho))
        for group in self._groups:
            turned = torch.bmm(inverted[group.span, : group.rank, : group.rank], group.y)
            mine = known[group.span].view(-1, 1, 1)
            group.basis.copy_(torch.where(mine, turned, group.basis))
        self.forget()
        self._lower()

    def forget(self) -> None:
        """Drops what was kept for `follow`."""
        self._trace.fill_(torch.nan)

    def _preconditioned(self, side: _Side, x: Tensor, factor: float, updating: bool) -> Tensor:
        """Makes rows natural, and returns their scale, float32 without dimensions."""
        h = x @ side.turn.T
        square = _square(x)
        if updating:
            self._keep(side, x, h, square, factor)
        x.addmm_(h, side.lowered, alpha=-1.0)
        return (square / _square(x)).sqrt().masked_fill(square == 0, 1.0)

    def _keep(self, side: _Side, x: Tensor, h: Tensor, square: Tensor, factor: float) -> None:
        """Keeps y = basis T and the trace of T, for `follow`; rows count times `factor`."""
        eta = min(MOST_FORGOTTEN, -math.expm1(-len(x) / self._estimation.num_samples_history))
        weight = eta / len(x) * factor**2
        core = self._core[side.place, : len(side.basis), : len(side.basis)]
        rho = self._rho[side.place]
        kept = core @ side.basis + rho * side.basis
        side.y.copy_((1.0 - eta) * kept + weight * product(h.T, x).double())
        before = side.dim * rho + core.diagonal().sum()
        self._trace[side.place] = (1.0 - eta) * before + weight * square.double()

    def _lower(self) -> None:
        """Brings what rows are multiplied by up to date."""
        alpha = self._estimation.alpha
        beta = (1.0 + alpha) * self._rho + alpha / self._dims * _trace(self._core)
        unit = self._unit
        smoothed = self._core + beta.view(-1, 1, 1) * unit
        bound = torch.linalg.matrix_norm(self._core) + beta
        e = unit - beta.view(-1, 1, 1) * inverse(smoothed, bound, self._smoothed_least)
        for group in self._groups:
            group.turn.copy_(group.basis)
            mine = e[group.span, : group.rank, : group.rank]
            group.lowered.copy_(torch.bmm(mine, group.basis))


def product(a: Tensor, b: Tensor) -> Tensor:
    """Returns a b in float32, whatever a and b are."""
    if a.is_cuda and a.dtype != torch.float32:
        return torch.mm(a, b, out_dtype=torch.float32)
    return (a @ b).float()


class _Group:
    """Sides whose padded rows and ranks are the same: one batch in `follow`."""

    def __init__(
        self, rank: int, padded: int, count: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.rank, self.sides, self.span = rank, list[_Side](), slice(0)
        self.basis = torch.zeros(count, rank, padded, dtype=torch.float64, device=device)
        self.y = torch.zeros_like(self.basis)
        self.turn = torch.zeros(count, rank, padded, dtype=dtype, device=device)
        self.lowered = torch.zeros_like(self.turn)


class _Side:
    """One kind of rows of a layer: where it is among all of them, and views of its group's."""

    def __init__(self, group: _Group, at: int, place: int, dim: int, rank: int) -> None:
        self.place, self.dim, self.rank = place, dim, rank
        self.basis, self.y = group.basis[at], group.y[at]
        self.turn, self.lowered = group.turn[at], group.lowered[at]


def _group(
    shapes: Sequence[Shape], estimation: Estimation, dtype: torch.dtype, device: torch.device
) -> tuple[list[_Group], list[dict[Side, _Side]]]:
    """Returns the groups of all sides, and the sides of each layer."""
    members: dict[tuple[int, int], list[tuple[int, Side, int]]] = {}
    for layer, shape in enumerate(shapes):
        weight = torch.empty(shape.outputs, shape.inputs, device="meta")
        for which in Side:
            rank = min(estimation.rank(which, weight), shape.width(which) - 1)
            key = _whole(rank), shape.padded(which)
            members.setdefault(key, []).append((layer, which, rank))
    groups: list[_Group] = []
    sides: list[dict[Side, _Side]] = [{} for _ in shapes]
    place = 0
    for (padded_rank, padded), some in members.items():
        group = _Group(padded_rank, padded, len(some), dtype, device)
        group.span = slice(place, place + len(some))
        for at, (layer, which, rank) in enumerate(some):
            side = _Side(group, at, place, shapes[layer].width(which), rank)
            group.sides.append(side)
            sides[layer][which] = side
            place += 1
        groups.append(group)
    return groups, sides


def _whole(count: int) -> int:
    return -(-count // WHOLE) * WHOLE


def _widened(z: Tensor, width: int) -> Tensor:
    """Returns square matrices with zeros around them."""
    more = width - z.shape[-1]
    return torch.nn.functional.pad(z, (0, more, 0, more)) if more else z


def _square(x: Tensor) -> Tensor:
    """Returns the sum of squares of a matrix, float32."""
    norm: Tensor = torch.linalg.vector_norm(x, dtype=torch.float32)
    return norm.square()


def _trace(a: Tensor) -> Tensor:
    return a.diagonal(dim1=-2, dim2=-1).sum(-1)
