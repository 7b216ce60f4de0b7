"""The low-rank estimate of the Fisher matrix that online natural gradient learns as it goes."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

EPSILON = 1e-10  # absolute floor of d and rho: what keeps a stream of zeros invertible
DELTA = 5e-4  # floor of d and rho relative to the largest s

# Where the smallest c falls below this fraction of the largest, z, squared as it is, no longer
# knows the smallest rows well enough and `updated` calls `updated_exactly`.
GRAM_LIMIT = 1e-9


@dataclass(frozen=True, eq=False)
class FisherEstimate:
    """F = basis' diag(d) basis + rho I: `rank` directions one by one, the others by their mean.

    **The update.** The rows of a minibatch x (N x D) have the second moment S = x'x / N, and
    the estimate should follow

        T = eta S + (1 - eta) F.

    T is D x D and is never formed. One step of subspace iteration is enough, since the old
    basis was good a minibatch ago: multiply it by T, and make the product orthonormal again.
    With h = x basis' (N x rank, known already from the preconditioning)

        y = basis T = (eta/N) h'x + (1 - eta) diag(d + rho) basis        rank x D
        z = y y'    = u diag(c) u'                                       rank x rank
        s = sqrt(c),    basis_new = diag(1/s) u'y

    whose rows are orthonormal: diag(1/s) u'z u diag(1/s) = I. s estimates the eigenvalues of T
    along the new rows. What they leave of its trace is spread evenly over the other D - rank
    directions,

        rho_new = (tr T - sum s) / (D - rank),      tr T = (eta/N) tr(xx') + (1 - eta) tr F
        d_new   = s - rho_new,

    so that tr F_new = tr T. Both are then floored at max(EPSILON, DELTA max s); d comes from
    rho *before* its floor.

    **Two methods.** `updated` works as written: the products h and h'x in the arithmetic of x, the
    rest in float64. c is a square, so float64 knows a row whose s is a fraction f of the largest to
    1e-16 / f^2; from one minibatch to the next the floors keep f above 1e-4. A first minibatch,
    or speech after silence, breaks that: F is then 1e-10 of S, and where x has fewer
    independent rows than the basis, some rows of the new basis are held up by F alone.
    `updated_exactly` recomputes y in float64 and decomposes y itself (QR, then the singular
    values of the triangle): its error is 1e-16 / f, its rows are orthonormal whatever y is.

    **Devices.** The basis is on the device of x. The rank x rank decomposition runs
    on the host, so d and rho are host numbers and the choice of the method costs nothing. An
    update waits for the device once, to read z; `torch.linalg.eigh` on the device would wait
    too, for its own status. Nothing else here waits, except `updated_exactly`.

    Attributes:
        basis: Orthonormal rows, rank x D.
        d: What each row of the basis adds to rho; float64, on the host.
        rho: The eigenvalue of every direction outside the basis.
    """

    basis: Tensor
    d: Tensor
    rho: float

    @classmethod
    def first(cls, x: Tensor, rank: int, eta: float, factor: float = 1.0) -> FisherEstimate:
        """Estimate F from a first minibatch of finite rows; computed in float64.

        The iteration starts from F = EPSILON (basis' basis + I) on a fixed sparse basis: column
        j belongs to row j mod rank, the first entry of a row is 1.1 and the others are 1 (not
        all alike, so that no combination of rows is the vector of ones, a likely direction of
        data), and each row is divided by its norm. Three updates follow; one, where the
        minibatch has no more rows than the basis.

        Args:
            x: The minibatch, N x D with D > 1. The basis takes its device, and its dtype, but for
                bfloat16.
            rank: Rows of the basis; at most D - 1 are kept.
            eta: Weight of this minibatch in each update.
            factor: What the rows are to be multiplied by.
        """
        count, dim = x.shape
        rank = min(rank, dim - 1)
        column = torch.arange(dim, device=x.device)
        basis = (column % rank == column[:rank].unsqueeze(1)).double()
        basis.diagonal().fill_(1.1)
        basis /= torch.linalg.vector_norm(basis, dim=1, keepdim=True)
        d = torch.full((rank,), EPSILON, dtype=torch.float64, device="cpu")
        estimate = cls(basis, d, EPSILON)
        for _ in range(1 if count <= rank else 3):
            estimate = estimate.updated_exactly(x, eta, factor)
        return estimate.to(x)

    @classmethod
    def from_core(cls, basis: Tensor, core: Tensor, rho: float) -> FisherEstimate:
        """Return F = basis' core basis + rho I with a diagonal d in place of the core.

        Args:
            basis: Orthonormal rows, rank x D.
            core: A diagonal as a vector, or symmetric, rank x rank; float64, on the host.
            rho: The eigenvalue of every direction outside the basis.
        """
        if core.dim() == 1:
            return cls(basis, core, rho)
        d, u = torch.linalg.eigh((core + core.T) / 2)
        return cls(u.T.to(basis) @ basis, d, rho)

    def to(self, like: Tensor) -> FisherEstimate:
        """Return this estimate for rows like these: on their device, and at least float32."""
        dtype = torch.promote_types(like.dtype, torch.float32)
        return FisherEstimate(self.basis.to(like.device, dtype), self.d, self.rho)

    def shrinkage(self, alpha: float) -> Tensor:
        """Return e = d / (beta + d), as `OnlineNaturalGradient` derives it, like the basis."""
        beta = (1.0 + alpha) * self.rho + alpha / self.basis.shape[1] * self.d.sum()
        return (self.d / (beta + self.d)).to(self.basis, non_blocking=True)

    def updated(
        self, x: Tensor, h: Tensor, norm: Tensor, eta: float, factor: float = 1.0
    ) -> FisherEstimate:
        """Return the estimate after a minibatch; this very one if the minibatch is not finite.

        Args:
            x: The minibatch, N x D, like the basis or bfloat16.
            h: x basis', N x rank.
            norm: sqrt(tr(xx')), float64, without dimensions.
            eta: Weight of this minibatch.
            factor: What the rows, h and their norm are to be multiplied by.
        """
        y = self._iterated(x, h, eta, factor)
        z = (y @ y.T).cpu()
        length = factor * float(norm)  # no second wait: the device had this before z
        mean_power = length * length / len(x)
        if not math.isfinite(mean_power):
            return self
        if not math.isfinite(float(z.trace())):  # h'x is too large for float32
            return self.updated_exactly(x, eta, factor).to(x)
        c, u = torch.linalg.eigh(z)
        if c[0] <= GRAM_LIMIT * c[-1]:
            return self.updated_exactly(x, eta, factor).to(x)
        s = c.sqrt()
        # In float64 although the basis may not be: the small rows are small differences.
        basis = (u / s).T.to(y.device, non_blocking=True) @ y
        return self._following(basis, s, mean_power, eta).to(x)

    def updated_exactly(self, x: Tensor, eta: float, factor: float = 1.0) -> FisherEstimate:
        """Return the estimate after a minibatch of finite rows, by the slow and accurate method."""
        x = x.double() * factor
        before = self.to(x)
        y = before._iterated(x, x @ before.basis.T, eta)
        columns, triangle = torch.linalg.qr(y.T)
        _, s, v = torch.linalg.svd(triangle.T.cpu())
        basis = v.to(y.device) @ columns.T
        return before._following(basis, s, float(x.square().sum()) / len(x), eta)

    def _iterated(self, x: Tensor, h: Tensor, eta: float, factor: float = 1.0) -> Tensor:
        """Return y = basis T in float64.

        Only the product is made in the arithmetic of x. Added up on top of the much larger
        second term, N alike rows would be rounded alike N times, and at each update again.
        """
        kept = ((1.0 - eta) * (self.d + self.rho)).to(self.basis.device, non_blocking=True)
        return (kept.unsqueeze(1) * self.basis).add_(h.T @ x, alpha=eta / len(x) * factor**2)

    def _following(self, basis: Tensor, s: Tensor, mean_power: float, eta: float) -> FisherEstimate:
        """Return the estimate that has the new basis and s; `mean_power` is tr(xx') / N."""
        rank, dim = basis.shape
        trace = eta * mean_power + (1.0 - eta) * (dim * self.rho + float(self.d.sum()))
        rho = (trace - float(s.sum())) / (dim - rank)
        floor = max(EPSILON, DELTA * float(s.max()))
        return FisherEstimate(basis, (s - rho).clamp(min=floor), max(rho, floor))
