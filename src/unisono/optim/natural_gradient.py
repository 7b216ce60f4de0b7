"""Online natural gradient (NG-SGD) for one matrix of rows, as Kaldi computes it."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from unisono.errors import UserError
from unisono.optim.fisher import FisherEstimate

ALWAYS_UPDATING = 10  # up to this t every call updates the estimate, whatever the period
MAX_ETA = 0.9  # eta is never larger, so that a huge minibatch does not erase the past
FLOAT32_ALPHA = 1.0  # with less smoothing than this, narrower rows are worked on in float64

_DTYPES = (torch.float32, torch.float64, torch.bfloat16)


class OnlineNaturalGradient:
    """Multiplies the rows of minibatches by an inverse Fisher matrix that it learns from them.

    An affine layer has one for its inputs (with the column of ones for the bias) and one for
    its output derivatives; the update from the preconditioned rows is then
    `learning_rate * scale_in * scale_out * rows_out' rows_in`.

    **Preconditioning.** Let x (N x D) be the rows of a minibatch and F = basis' diag(d) basis +
    rho I the estimate of their second moment from earlier minibatches (`FisherEstimate` has it
    and derives its update). F is smoothed towards a multiple of I with the strength alpha,

        G    = F + (alpha/D) tr(F) I = basis' diag(d) basis + beta I,
        beta = (1 + alpha) rho + (alpha/D) sum d,

    where tr F = D rho + sum d because the rows of the basis are orthonormal. For the same
    reason G has the eigenvalue beta + d_i along row i, and beta across all rows, hence

        beta G^-1 = I - basis' diag(e) basis,    e_i = 1 - beta/(beta + d_i) = d_i/(beta + d_i),

    and the rows returned are, without a matrix of D x D anywhere,

        h    = x basis'                                  N x rank
        rows = x - h diag(e) basis = beta x G^-1         N x D
        scale = sqrt(tr(xx') / tr(rows rows'))           (1 where x is zero)

    `scale` restores the size that x had: the preconditioner turns gradients, the learning
    rate keeps its meaning. The rows are not multiplied by it.

    **When it learns.** Call t (0, 1, ...) preconditions with the estimate from the calls before
    it; then, if t <= 10 or t - 10 is a multiple of `update_period`, the estimate follows x with
    the weight eta = 1 - exp(-N / num_samples_history), at most 0.9. The first call makes the
    estimate from its own rows beforehand, frozen or not. `frozen = True` stops the updates but
    not t. Rows of dimension 1 come back as they are and do not count.

    **Scale of x.** Everything but one floor is invariant to the scale of x: eigenvalues below
    1e-10 count as 1e-10. Give derivatives of a *sum* over the minibatch. Those of a mean are N
    times smaller, and their squares may vanish under that floor.

    **Accuracy.** Of scale * rows, against exact arithmetic: float64 rows to about 1e-8, float32
    rows to 2e-7 `scale`; what is as large as x is multiplied in float32, the rest is float64.
    rows is a difference, and its relative error is that of x times `scale`, a small number
    where alpha smooths, unless all rows lie along one direction. Without smoothing it comes to
    1e3, so with alpha < 1 float32 rows are worked on in float64. (TF32, if the user allows it,
    is as coarse here as elsewhere.)

    **bfloat16 rows** are multiplied by a basis that is rounded as well, and products are known to
    2^-9, so what is left of a direction that is all but taken away is rough; `scale` is known to
    2^-7 where all rows are alike, far better elsewhere. The estimate itself stays float32, and
    learns from sums in float32 and float64.

    **Cost.** 4 N rank D floating-point operations a call; 6 N rank D, and 4 rank^2 D in float64
    besides, where the call updates. `docs/evidence/natural_gradient.md` has floors and
    measurements. On CUDA only a call that updates waits for the device, once.

    A minibatch that is not finite leaves the estimate as it was; before the first estimate it
    comes back unchanged and does not count.

    Attributes:
        frozen: Set it to stop updating the estimate.
    """

    frozen: bool

    def __init__(
        self,
        rank: int = 40,
        update_period: int = 1,
        num_samples_history: float = 2000.0,
        num_minibatches_history: float = 0.0,
        alpha: float = 4.0,
    ) -> None:
        """Start without an estimate.

        Args:
            rank: Directions held one by one; at most D - 1 are.
            update_period: Calls from one update of the estimate to the next, after the first ten.
            num_samples_history: Rows over which the estimate remembers.
            num_minibatches_history: The same in minibatches of any size (eta is its inverse);
                0: count rows.
            alpha: Smoothing of the Fisher matrix; towards infinity it gives plain SGD.

        Raises:
            UserError: A value is out of its range.
        """
        _require(rank >= 1, f"rank is {rank}: give 1 or more")
        _require(update_period >= 1, f"update_period is {update_period}: give 1 or more")
        _require(
            num_samples_history > 0,
            f"num_samples_history is {num_samples_history}: give a number of rows above 0",
        )
        _require(
            num_minibatches_history == 0 or num_minibatches_history > 1,
            f"num_minibatches_history is {num_minibatches_history}: give 0 (off) or more than 1",
        )
        _require(alpha >= 0, f"alpha is {alpha}: give 0 or more")
        self.frozen = False
        self._rank = rank
        self._update_period = update_period
        self._num_samples_history = num_samples_history
        self._num_minibatches_history = num_minibatches_history
        self._alpha = alpha
        self._t = 0
        self._fisher: FisherEstimate | None = None
        self._basis = self._e = torch.empty(0)

    @torch.no_grad()
    def precondition(
        self, x: Tensor, out: Tensor | None = None, *, factor: float = 1.0
    ) -> tuple[Tensor, Tensor]:
        """Precondition the rows of one minibatch, and learn from them when it is time.

        Args:
            x: N x D, float32, float64 or bfloat16; D is the same at every call.
            out: Where to put the rows, x itself included, which saves a copy; by default a new
                tensor.
            factor: What x is to be multiplied by before the estimate sees it; neither the rows
                returned nor the scale are.

        Returns:
            The preconditioned rows, not multiplied by the scale, and the scale: a float64 tensor
            without dimensions, on the device of x, so that the host need not wait for it.

        Raises:
            UserError: x is not such a matrix.
        """
        self._check(x)
        if out is None:
            out = torch.empty_like(x)
        with torch.autocast(x.device.type, enabled=False):
            work = x.double() if self._alpha < FLOAT32_ALPHA else x
            updating = updates(self._t, self._update_period) and not self.frozen
            norm = _norm(work, precise=updating)
            fisher = self._current(work, norm, factor)
            if fisher is None:
                return out.copy_(x), torch.ones_like(norm)
            basis = self._basis
            h = work @ basis.T
            lowered = h * self._e
            if updating:
                # Before x is overwritten, where out is x.
                self._use(fisher.updated(work, h, norm, self._eta(len(x)), factor), work)
            self._t += 1
            if work.dtype == out.dtype:
                torch.addmm(work, lowered, basis, alpha=-1.0, out=out)
            else:
                out.copy_(torch.addmm(work, lowered, basis, alpha=-1.0))
        scale = (norm / _norm(out)).masked_fill_(norm == 0, 1.0)
        return out, scale

    def state_dict(self) -> dict[str, Tensor | float]:
        """Return all that an object made with the same settings needs to continue exactly."""
        fisher = self._fisher
        if fisher is None:
            fisher = FisherEstimate(torch.empty(0, 0), torch.empty(0), 0.0)
        return {
            "t": self._t,
            "frozen": self.frozen,
            "basis": fisher.basis,
            "d": fisher.d,
            "rho": fisher.rho,
        }

    def load_state_dict(self, state: Mapping[str, Tensor | float]) -> None:
        """Continue from what `state_dict` returned, on whatever device the next rows are.

        Raises:
            UserError: The state was made with another rank, or is not a state at all.
        """
        basis, d, rho = checked_state(state, self._rank)
        self._t = int(state["t"])
        self.frozen = bool(state["frozen"])
        self._fisher = None
        if len(basis) > 0:
            self._use(FisherEstimate.from_core(basis, d.cpu(), rho), basis)

    def _use(self, fisher: FisherEstimate, rows: Tensor) -> FisherEstimate:
        """Make this the estimate, and keep its basis and e in the dtype of the rows."""
        self._basis = fisher.basis.to(rows.dtype)
        self._e = fisher.shrinkage(self._alpha).to(rows.dtype)
        self._fisher = fisher
        return fisher

    def _check(self, x: Tensor) -> None:
        """Refuse what is not N x D, of a known dtype, of the dimension seen before."""
        if x.dim() != 2 or 0 in x.shape or x.dtype not in _DTYPES:
            raise UserError(
                f"natural gradient: x is {x.dtype} of shape {tuple(x.shape)}; give a matrix of "
                "float32, float64 or bfloat16 rows, at least one"
            )
        if self._fisher is not None and x.shape[1] != self._fisher.basis.shape[1]:
            raise UserError(
                f"natural gradient: x has {x.shape[1]} columns, earlier minibatches had "
                f"{self._fisher.basis.shape[1]}; use one OnlineNaturalGradient for each matrix"
            )

    def _current(self, x: Tensor, norm: Tensor, factor: float) -> FisherEstimate | None:
        """Return the estimate to precondition x with; None where x is to be left alone."""
        fisher = self._fisher
        if x.shape[1] == 1 or (fisher is None and not norm.isfinite()):
            return None
        if fisher is None:
            first = FisherEstimate.first(x, self._rank, self._eta(len(x)), factor)
            return self._use(first, x)
        if self._basis.dtype != x.dtype or self._basis.device != x.device:
            fisher = self._use(fisher.to(x), x)
        return fisher

    def _eta(self, count: int) -> float:
        """Return the weight of a minibatch of `count` rows in the estimate."""
        if self._num_minibatches_history > 0:
            return 1.0 / self._num_minibatches_history
        return update_weight(count, self._num_samples_history)


def updates(t: int, update_period: int) -> bool:
    """Whether call t, counted from 0, updates the estimate."""
    return t <= ALWAYS_UPDATING or (t - ALWAYS_UPDATING) % update_period == 0


def update_weight(count: int, num_samples_history: float) -> float:
    """Return eta, the weight of a minibatch of `count` rows in an update."""
    return min(MAX_ETA, -math.expm1(-count / num_samples_history))


def checked_state(state: Mapping[str, Tensor | float], rank: int) -> tuple[Tensor, Tensor, float]:
    """Return basis, d and rho of a state; without an estimate, the basis has no rows.

    Args:
        state: What a `state_dict` returned. d is a vector, or a symmetric matrix where the basis
            is not the one in which that matrix is diagonal.
        rank: The rank that it should have.

    Raises:
        UserError: The state was made with another rank, or is not a state at all.
    """
    missing = {"t", "frozen", "basis", "d", "rho"} - state.keys()
    if missing:
        raise UserError(
            f"natural gradient state: {', '.join(sorted(missing))} missing; give what "
            "state_dict returned"
        )
    basis, d = torch.as_tensor(state["basis"]), torch.as_tensor(state["d"])
    found, dim = basis.shape
    if found > 0 and (found != min(rank, dim - 1) or d.shape not in ((found,), (found, found))):
        raise UserError(
            f"natural gradient state: it has rank {found} in dimension {dim}, which does not go "
            f"with rank={rank}; use the rank that it was made with"
        )
    return basis, d, float(state["rho"])


def _norm(x: Tensor, *, precise: bool = False) -> Tensor:
    """Return sqrt(tr(xx')) in float64; float32 sums are good along a row, not over a matrix.

    The norm of a bfloat16 row is rounded to bfloat16 unless `precise`, which a CPU does faster.
    """
    wide = torch.float32 if precise and x.dtype is torch.bfloat16 else None
    rows = torch.linalg.vector_norm(x, dim=1, dtype=wide)
    norm: Tensor = torch.linalg.vector_norm(rows, dtype=torch.float64)
    return norm


def _require(condition: bool, problem: str) -> None:
    """Raise a UserError about a setting unless the condition holds."""
    if not condition:
        raise UserError(f"natural gradient: {problem}")
