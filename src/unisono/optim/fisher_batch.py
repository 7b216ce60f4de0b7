"""Fisher estimates of many matrices of rows, preconditioned and updated on their device."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from unisono.optim.fisher import DELTA, EPSILON
from unisono.optim.matrix_functions import (
    inverse,
    inverse_root,
    largest_eigenvalue,
    positive_part,
    trace,
)
from unisono.optim.natural_gradient import update_weight

LEAST = 1e-5  # of s: directions of the new basis below it are damped, not normalised
LEAST_BFLOAT16 = 1e-3  # the same for rows that are known to three digits
ALIGNMENT = 16  # columns and ranks are padded to a multiple of it


class FisherBatch:
    """What `OnlineNaturalGradient` computes, for many matrices, without waiting for the device.

    `OnlineNaturalGradient` decomposes an r x r matrix on the host, and each matrix takes a hundred
    small launches. Here the r x r work of all matrices is one batch (of the largest rank; smaller
    ones have rows of zeros in their basis), and consists of matrix products alone, so that it can
    be captured in a CUDA graph.

    **Without eigenvectors.** F = basis' core basis + rho I is the same estimate in any rotated
    basis, if core (r x r, symmetric) is rotated with it; in `FisherEstimate` core is diag(d). With
    y = basis T and z = y y' as there, the Fisher update is then

        root  = z^1/2,          basis_new = z^-1/2 y,
        rho   = (tr T - tr root) / (D - rank),
        floor = max(EPSILON, DELTA max eigenvalue of root),
        core  = floor I + positive part of (root - (rho + floor) I),

    and rho is floored last: what `FisherEstimate` does to each eigenvalue is done here to the
    matrix. Rows are preconditioned as

        h      = x basis',      rows = x - h shrunk,
        shrunk = e basis,       e    = core smooth^-1 = I - beta smooth^-1,
        smooth = core + beta I, beta = (1 + alpha) rho + (alpha/D) tr core.

    `unisono.optim.matrix_functions` has the root, the positive part and the inverse, and says how
    accurate they are.

    **An update in two parts.** `precondition(..., updating=True)` keeps y and tr T; `update`
    updates the estimates of all matrices for which they were kept, and must be called before the
    same matrix is preconditioned again.

    **Padding.** Rows end with zeros up to a multiple of 16 columns, which change nothing but the
    time: a GPU multiplies rows of 10224 numbers four times as fast as those of 10217.

    **Precision.** Rows are multiplied in their own dtype; what has rank x D numbers or less is
    float64. With float32 and float64 rows it agrees with `OnlineNaturalGradient` to 1e-5, with
    bfloat16 rows to what bfloat16 can represent. There is no counterpart of
    `FisherEstimate.updated_exactly` but for the first estimate: where the rows of a minibatch are
    hundreds of times larger than all before and fewer than the rank, directions that none of
    them reaches are lost for a while.

    A minibatch that is not finite leaves the estimate as it was. Rows of dimension 1 come back as
    they are.
    """

    def __init__(
        self,
        sizes: Sequence[tuple[int, int]],
        *,
        num_samples_history: float,
        alpha: float,
        device: torch.device,
    ) -> None:
        """Allocates all matrices; `load` gives each its first estimate.

        Args:
            sizes: Dimension and rank of each matrix of rows; the rank is at most D - 1.
            num_samples_history: Rows over which the estimates remember.
            alpha: Smoothing of the Fisher matrix.
            device: Of the rows.
        """
        self._history, self._alpha = num_samples_history, alpha
        self._groups, self._slots = _allocate(sizes, device)
        slots = sorted((s for s in self._slots if s is not None), key=lambda slot: slot.place)
        ranks, dims = [slot.rank for slot in slots], [slot.dim for slot in slots]
        most = max((group.rank for group in self._groups), default=0)
        self._used = (torch.arange(most) < torch.tensor(ranks).unsqueeze(1)).double().to(device)
        self._ranks = torch.tensor(ranks, dtype=torch.float64, device=device)
        self._dims = torch.tensor(dims, dtype=torch.float64, device=device)
        self._core = torch.zeros(len(slots), most, most, dtype=torch.float64, device=device)
        self._unit = torch.eye(most, dtype=torch.float64, device=device)
        self._rho = torch.full_like(self._ranks, EPSILON)
        self._trace = torch.full_like(self._ranks, torch.nan)  # of T; NaN: no update is pending
        # beta / (|core| + beta), by which smooth^-1 is bounded, is at least alpha / (D + alpha),
        # and at least DELTA / (sqrt(rank) + DELTA), since rho and d are floored.
        bounds = [
            max(alpha / (dim + alpha), DELTA / (math.sqrt(rank) + DELTA))
            for dim, rank in zip(dims, ranks, strict=True)
        ]
        self._least_smooth = 0.5 * math.sqrt(min(bounds, default=1.0))
        self.dtypes: list[torch.dtype] = []
        """Of the rows so far: each has copies of the matrices that rows are multiplied by."""

    def columns(self, index: int) -> int:
        """Returns how many columns the rows of a matrix have with their padding."""
        slot = self._slots[index]
        return padded(1) if slot is None else slot.basis.shape[1]

    @torch.no_grad()
    def load(self, index: int, basis: Tensor, core: Tensor, rho: float) -> None:
        """Sets the estimate of one matrix; core may be the diagonal of a diagonal one."""
        slot = self._slots[index]
        assert slot is not None, "rows of dimension 1 have no estimate"
        rank = len(basis)
        slot.basis.zero_()[:rank, : slot.dim] = basis.to(slot.basis)
        own = self._core[slot.place].zero_()
        own[:rank, :rank] = (torch.diag(core) if core.dim() == 1 else core).to(own)
        self._rho[slot.place] = rho
        self._trace[slot.place] = torch.nan
        self._shrink()

    def estimate(self, index: int) -> tuple[Tensor, Tensor, float]:
        """Returns basis, core and rho of one matrix, exactly; waits for the device."""
        slot = self._slots[index]
        assert slot is not None, "rows of dimension 1 have no estimate"
        basis = slot.basis[: slot.rank, : slot.dim].clone()
        core = self._core[slot.place, : slot.rank, : slot.rank].clone().cpu()
        return basis, core, float(self._rho[slot.place])

    @torch.no_grad()
    def precondition(self, index: int, x: Tensor, *, factor: float = 1.0, updating: bool) -> Tensor:
        """Preconditions the rows of a minibatch in place.

        Args:
            index: Which matrix of rows.
            x: N x D, padded with zeros to N x columns(index); **overwritten**.
            factor: What the rows are to be multiplied by before the estimate sees them.
            updating: Whether `update` is to update the estimate from them.

        Returns:
            The scale, without dimensions, on the device.
        """
        slot = self._slots[index]
        if slot is None:
            return torch.ones((), dtype=_norm_dtype(x), device=x.device)
        basis, shrunk = self._multipliers(slot, x.dtype)
        h = x @ basis.T
        norm = _norm(x)
        if updating:
            self._keep(slot, x, h, norm.square(), factor)
        x.addmm_(h, shrunk, alpha=-1.0)
        # Rows of zeros have the scale 1; rows that are not finite remain so with any scale.
        return (norm / _norm(x)).nan_to_num(nan=1.0, posinf=math.inf, neginf=-math.inf)

    @torch.no_grad()
    def update(self, least: float = LEAST) -> None:
        """Updates the estimates for which an update is pending.

        Args:
            least: Precision of the roots; `LEAST_BFLOAT16` where rows were bfloat16.
        """
        if not self._groups:
            return
        used, unit = self._used, self._unit
        z = torch.cat([_enlarged(torch.bmm(g.y, g.y.mT), len(unit)) for g in self._groups])
        z.diagonal(dim1=-2, dim2=-1).add_((1.0 - used) * (trace(z) / self._ranks).unsqueeze(1))
        inverted = inverse_root(z, torch.linalg.matrix_norm(z), least)
        root = torch.bmm(z, inverted)
        root = (root + root.mT) / 2
        s = root.diagonal(dim1=-2, dim2=-1)
        rho = (self._trace - (s * used).sum(1)) / (self._dims - self._ranks)
        top = largest_eigenvalue(z).sqrt()
        floor = (DELTA * top).clamp(min=EPSILON)
        above = root - (rho + floor).view(-1, 1, 1) * unit
        bound = 1.01 * top + rho.abs() + floor
        core = floor.view(-1, 1, 1) * unit + positive_part(above, bound, least)
        core = core * (used.unsqueeze(1) * used.unsqueeze(2))
        pending = self._trace.isfinite()
        self._core.copy_(torch.where(pending.view(-1, 1, 1), core, self._core))
        self._rho.copy_(torch.where(pending, torch.maximum(rho, floor), self._rho))
        for group in self._groups:
            basis = torch.bmm(inverted[group.places, : group.rank, : group.rank], group.y)
            mine = pending[group.places].view(-1, 1, 1)
            group.basis.copy_(torch.where(mine, basis, group.basis))
        self.discard_pending()
        self._shrink()

    def discard_pending(self) -> None:
        """Drops what was kept for `update`."""
        self._trace.fill_(torch.nan)

    def _keep(self, slot: _Slot, x: Tensor, h: Tensor, square: Tensor, factor: float) -> None:
        """Keeps y = basis T and tr T for `update`."""
        eta = update_weight(len(x), self._history)
        weight = eta / len(x) * factor**2
        core = self._core[slot.place, : len(slot.basis), : len(slot.basis)]
        rho = self._rho[slot.place]
        before = core @ slot.basis + rho * slot.basis
        slot.y.copy_((1.0 - eta) * before + weight * product(h.T, x).double())
        trace_before = slot.dim * rho + core.diagonal().sum()
        self._trace[slot.place] = (1.0 - eta) * trace_before + weight * square.double()

    def _multipliers(self, slot: _Slot, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Returns the basis and e basis in the dtype of the rows."""
        if dtype not in self.dtypes:
            self.dtypes.append(dtype)
            for group in self._groups:
                group.multipliers[dtype] = (
                    torch.zeros_like(group.basis, dtype=dtype),
                    torch.zeros_like(group.basis, dtype=dtype),
                )
            self._shrink()
        basis, shrunk = slot.group.multipliers[dtype]
        return basis[slot.at], shrunk[slot.at]

    def _shrink(self) -> None:
        """Computes what rows are multiplied by from the estimates."""
        alpha, unit = self._alpha, self._unit
        beta = (1.0 + alpha) * self._rho + alpha / self._dims * trace(self._core)
        smooth = self._core + beta.view(-1, 1, 1) * unit
        bound = torch.linalg.matrix_norm(self._core) + beta
        e = unit - beta.view(-1, 1, 1) * inverse(smooth, bound, self._least_smooth)
        for group in self._groups:
            exact = torch.bmm(e[group.places, : group.rank, : group.rank], group.basis)
            for basis, shrunk in group.multipliers.values():
                basis.copy_(group.basis)
                shrunk.copy_(exact)


def product(a: Tensor, b: Tensor) -> Tensor:
    """Returns a b, accumulated and returned in float32 where a and b are narrower."""
    if a.dtype in (torch.float32, torch.float64):
        return a @ b
    if a.is_cuda:
        return torch.mm(a, b, out_dtype=torch.float32)
    return (a @ b).float()


class _Group:
    """Matrices whose padded rows and ranks are the same: one batch of products."""

    def __init__(self, rank: int, columns: int, places: slice, device: torch.device) -> None:
        count = places.stop - places.start
        self.rank, self.places = rank, places
        self.basis = torch.zeros(count, rank, columns, dtype=torch.float64, device=device)
        self.y = torch.zeros_like(self.basis)
        self.multipliers: dict[torch.dtype, tuple[Tensor, Tensor]] = {}


class _Slot:
    """One matrix: its place in the batch of all, and its views of its group's tensors."""

    def __init__(self, group: _Group, at: int, dim: int, rank: int) -> None:
        self.group, self.at, self.place = group, at, group.places.start + at
        self.dim, self.rank = dim, rank
        self.basis, self.y = group.basis[at], group.y[at]


def _allocate(
    sizes: Sequence[tuple[int, int]], device: torch.device
) -> tuple[list[_Group], list[_Slot | None]]:
    """Returns the groups of all matrices, and the slot of each that has more than one column."""
    members: dict[tuple[int, int], list[int]] = {}
    for index, (dim, rank) in enumerate(sizes):
        if dim > 1:
            key = padded(min(rank, dim - 1)), padded(dim)
            members.setdefault(key, []).append(index)
    groups: list[_Group] = []
    slots: list[_Slot | None] = [None] * len(sizes)
    place = 0
    for (padded_rank, columns), indices in members.items():
        group = _Group(padded_rank, columns, slice(place, place + len(indices)), device)
        for at, index in enumerate(indices):
            dim, rank = sizes[index]
            slots[index] = _Slot(group, at, dim, min(rank, dim - 1))
        groups.append(group)
        place += len(indices)
    return groups, slots


def padded(count: int) -> int:
    """Returns to how many a number of columns or a rank is padded."""
    return -(-count // ALIGNMENT) * ALIGNMENT


def _enlarged(z: Tensor, size: int) -> Tensor:
    """Returns square matrices with zeros to the right and below."""
    more = size - z.shape[-1]
    return torch.nn.functional.pad(z, (0, more, 0, more)) if more else z


def _norm_dtype(x: Tensor) -> torch.dtype:
    return torch.float64 if x.dtype is torch.float64 else torch.float32


def _norm(x: Tensor) -> Tensor:
    """Returns the 2-norm of a matrix, in float32 at least."""
    norm: Tensor = torch.linalg.vector_norm(x, dtype=_norm_dtype(x))
    return norm
