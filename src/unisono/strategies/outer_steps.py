"""Outer steps: how the next round's model is made of the mean of the learners' models.

An outer step gets ``start``, the model that the round began with, and ``mean``, the mean of the
models at its end, and moves ``start`` to where the next round begins. Its vectors (momentum) are
the same at every member, and are sent to newcomers and saved in checkpoints.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from unisono.errors import UserError
from unisono.fabric import Vector


class OuterState(Protocol):
    """The state of an outer step."""

    vectors: dict[str, Vector]

    def advance(self, start: Vector, mean: Vector, rate: float, members: int) -> None:
        """Moves ``start``; ``rate`` is the learners' current learning rate."""

    def consensus(self, start: Vector) -> Vector:
        """The model that the run hands out."""


class Outer(Protocol):
    """The settings of an outer step."""

    def gain(self, members: int) -> float:
        """How far ``start`` moves per round, relative to a steady ``mean - start``."""

    def begin(self, start: Vector) -> OuterState:
        """A new state, for a run that begins at ``start``."""


def _check(momentum: float | None, rate: float) -> None:
    if momentum is not None and not 0 <= momentum < 1:
        raise UserError(f"momentum of the outer step is {momentum}: it must be at least 0, below 1")
    if not rate > 0:
        raise UserError(f"rate of the outer step is {rate}: it must be above 0")


@dataclass
class _State:
    vectors: dict[str, Vector] = field(default_factory=dict)

    def consensus(self, start: Vector) -> Vector:
        return start


@dataclass(frozen=True, kw_only=True)
class Plain:
    """``start = mean``: Kaldi's parameter averaging, local SGD."""

    def gain(self, members: int) -> float:
        return 1.0

    def begin(self, start: Vector) -> OuterState:
        return _PlainState()


class _PlainState(_State):
    def advance(self, start: Vector, mean: Vector, rate: float, members: int) -> None:
        start.assign(mean)


@dataclass(frozen=True, kw_only=True)
class BlockMomentum:
    """Blockwise model-update filtering (Chen and Huo 2016), in the mean's form.

    With G = mean - start, D = momentum D + rate G and W = W + D, the next round starts from W, or
    with ``nesterov`` from W + momentum D; W is handed out. On a steady G it moves by
    rate / (1 - momentum) G per round: the default momentum, 1 - 1/members, adds up what all
    learners did. Momentum 0 and rate 1 are plain averaging.
    """

    momentum: float | None = None
    rate: float = 1.0
    nesterov: bool = False

    def __post_init__(self) -> None:
        _check(self.momentum, self.rate)

    def gain(self, members: int) -> float:
        return self.rate / (1 - self.momentum_of(members))

    def momentum_of(self, members: int) -> float:
        return 1 - 1 / members if self.momentum is None else self.momentum

    def begin(self, start: Vector) -> OuterState:
        return _BlockMomentumState(self, start)


class _BlockMomentumState(_State):
    def __init__(self, settings: BlockMomentum, start: Vector) -> None:
        delta = start.copy()
        delta.scale(0.0)
        super().__init__({"model": start.copy(), "delta": delta})
        self._settings = settings
        self._scratch = start.like()

    def advance(self, start: Vector, mean: Vector, rate: float, members: int) -> None:
        settings = self._settings
        momentum = settings.momentum_of(members)
        model, delta = self.vectors["model"], self.vectors["delta"]
        self._scratch.difference(mean, start)
        delta.scale(momentum)
        delta.add(self._scratch, settings.rate)
        model.add(delta)
        start.assign(model)
        if settings.nesterov:
            start.add(delta, momentum)

    def consensus(self, start: Vector) -> Vector:
        return self.vectors["model"]


@dataclass(frozen=True, kw_only=True)
class _Momentum:
    momentum: float = 0.5
    rate: float = 1.0

    def __post_init__(self) -> None:
        _check(self.momentum, self.rate)

    def gain(self, members: int) -> float:
        return self.rate / (1 - self.momentum)


class _MomentumState(_State):
    def __init__(self, settings: _Momentum, start: Vector, name: str) -> None:
        self._momentum = start.copy()
        self._momentum.scale(0.0)
        super().__init__({name: self._momentum})
        self._settings = settings
        self._scratch = start.like()


@dataclass(frozen=True, kw_only=True)
class SlowMo(_Momentum):
    """Slow momentum (Wang et al. 2020).

    u = momentum u + (start - mean) / r and start = start - rate r u, where r is the learners'
    learning rate; with r = 0, start = mean and u stays. Momentum 0 and rate 1 are plain averaging.
    """

    def begin(self, start: Vector) -> OuterState:
        return _SlowMoState(self, start, "slow")


class _SlowMoState(_MomentumState):
    def advance(self, start: Vector, mean: Vector, rate: float, members: int) -> None:
        if rate == 0.0:
            start.assign(mean)
            return
        self._scratch.difference(start, mean)
        self._momentum.scale(self._settings.momentum)
        self._momentum.add(self._scratch, 1 / rate)
        start.add(self._momentum, -self._settings.rate * rate)


@dataclass(frozen=True, kw_only=True)
class Nesterov(_Momentum):
    """An outer Nesterov SGD step on the pseudo-gradient, as in DiLoCo.

    g = start - mean, m = momentum m + g, start = start - rate (g + momentum m). Momentum 0 and
    rate 1 are plain averaging. DiLoCo's own 0.9 and 0.7 are for rounds of hundreds of steps.
    """

    def begin(self, start: Vector) -> OuterState:
        return _NesterovState(self, start, "momentum")


class _NesterovState(_MomentumState):
    def advance(self, start: Vector, mean: Vector, rate: float, members: int) -> None:
        self._scratch.difference(start, mean)
        self._momentum.scale(self._settings.momentum)
        self._momentum.add(self._scratch)
        start.add(self._scratch, -self._settings.rate)
        start.add(self._momentum, -self._settings.rate * self._settings.momentum)


OUTERS: dict[str, type] = {
    "plain": Plain,
    "block-momentum": BlockMomentum,
    "slowmo": SlowMo,
    "nesterov": Nesterov,
}
