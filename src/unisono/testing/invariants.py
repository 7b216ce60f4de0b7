"""Invariants of a finished run of toy learners. Each raises ``AssertionError`` if violated."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

import numpy as np

from unisono.testing.cluster import ToyRun
from unisono.testing.ledger import Exchange, Kind, Numbers
from unisono.testing.losses import Marks
from unisono.testing.toy import Result

TOLERANCE = 1e-9
"""Relative to the largest number: far above rounding, far below any step."""


def all_committed(run: ToyRun) -> None:
    """Every minibatch is committed exactly once, and what was handed out was kept or came back."""
    counts = run.state.pool.counts
    before = sum(stop - start for start, stop in run.state.pool.done)
    assert run.state.pool.over, f"the run ended before everything was committed: {counts}"
    assert counts.committed + counts.skipped == run.total - before, (
        f"{counts.committed} committed and {counts.skipped} skipped of {run.total - before}"
    )
    assert counts.leased == counts.committed + counts.skipped + counts.returned, (
        f"handed out {counts.leased}, but kept {counts.committed} + {counts.skipped} "
        f"and came back {counts.returned}"
    )
    held = {str(who): list(ranges) for who, ranges in run.state.pool.held.items() if ranges}
    assert not held, f"still in somebody's hands: {held}"


def all_trained(run: ToyRun, *, calm: bool) -> None:
    """Somebody trained each minibatch; without faults (``calm``) only what was dropped again."""
    missing = run.coverage.missing(run.total)
    done = {p for start, stop in run.state.pool.done for p in range(start, stop)}
    assert set(missing) == done, f"nobody trained {sorted(set(missing) ^ done)[:10]}"
    repeated = run.coverage.repeated()
    again = len(repeated) - run.state.pool.counts.dropped
    assert not (calm and again > 0), f"trained more than once without a fault: {repeated[:10]}"


def kept_once(run: ToyRun, marks: Marks, *, loses_after: int | None = None) -> None:
    """Each minibatch is in the consensus by the steps of exactly one life of one learner.

    From ``loses_after`` deaths on some may be in it by nobody's: what only the dead had.
    """
    least = 0 if loses_after is not None and len(run.state.lost) >= loses_after else 1
    for result in run.survivors:
        assert result.consensus is not None
        lives = (np.abs(marks.read(result.consensus)) > TOLERANCE).sum(axis=1)
        for position in np.flatnonzero((lives > 1) | (lives < least))[:1]:
            raise AssertionError(
                f"position {position} is in the consensus of {result.address.name} by the steps "
                f"of {lives[position]} learners"
            )


def same_consensus(run: ToyRun, *, exactly: bool) -> None:
    """All learners hand out the same consensus."""
    _all_same("consensus", [(r, r.consensus) for r in run.survivors], exactly)


def same_end(run: ToyRun, *, exactly: bool) -> None:
    """All learners end with the same parameters, and these are the consensus."""
    ends = [(r, r.final) for r in run.survivors]
    _all_same("final parameters", ends, exactly)
    for result in run.survivors:
        both = [(result, result.final), (result, result.consensus)]
        _all_same("final parameters and consensus", both, exactly)


def nothing_lost(run: ToyRun) -> None:
    """Each learner's parameters are the sum of its own steps and the deltas that it was given.

    A snapshot contains the pending deltas. A learner whose parameters are replaced has made no
    step since the snapshot from which the new value was computed.
    """
    for result in run.survivors:
        _check_ledger(result, run.ordered)


def _check_ledger(result: Result, ordered: bool) -> None:
    name = result.address.name
    value: Numbers = np.zeros(0)
    snapshot: Numbers | None = None
    for entry in result.ledger.entries:
        where = f"{name}, round {entry.round}"
        if entry.kind is Kind.BEGIN:
            value, snapshot = entry.vector, None
        elif entry.kind in (Kind.STEP, Kind.ADD):
            value = value + entry.vector
        elif entry.kind is Kind.SNAPSHOT:
            snapshot = entry.vector
            assert not ordered or _close(snapshot, value), (
                f"{where}: a snapshot is not parameters plus pending deltas; "
                f"it is off by {_distance(snapshot, value):.3g}"
            )
        elif entry.kind is Kind.REPLACE:
            assert snapshot is None or _close(value, snapshot), (
                f"{where}: parameters were replaced although the learner had moved by "
                f"{_distance(value, snapshot):.3g} since the snapshot"
            )
            value = entry.vector
    assert result.final is not None
    assert _close(value, result.final), (
        f"{name}: steps and deltas lead elsewhere; {_distance(value, result.final):.3g} was lost"
    )


def mean_kept(run: ToyRun) -> float:
    """In each round the weighted mean of what was given is the mean of what came back.

    With g_i what learner i gave, n_i its weight and m_i how far the answer moved it,
    sum_i n_i m_i = 0; without any weight the m_i themselves sum to zero. Returns the largest
    movement, for the caller to see that there was anything to check.
    """
    largest = 0.0
    for number, exchanges in _by_round(run).items():
        weights = [exchange.weight for exchange in exchanges]
        if sum(weights) == 0:
            weights = [1] * len(exchanges)
        moved = sum(n * e.moved for n, e in zip(weights, exchanges, strict=True)) / sum(weights)
        scale = max(float(np.abs(e.moved).max(initial=0.0)) for e in exchanges)
        largest = max(largest, scale)
        size = max(scale, *(float(np.abs(e.gave).max(initial=0.0)) for e in exchanges))
        assert np.abs(moved).max(initial=0.0) <= TOLERANCE * max(1.0, size), (
            f"round {number} moved the mean by {np.abs(moved).max():.3g} "
            f"(weights {weights}, movements up to {scale:.3g})"
        )
    return largest


def sum_kept(run: ToyRun) -> float:
    """Exchanges of two move the learners, and not their sum; returns the largest movement.

    All deltas that all learners were ever given add up to nothing: those of a pair are negatives of
    each other.
    """
    deltas = [
        entry.vector
        for result in run.results
        for entry in result.ledger.entries
        if entry.kind is Kind.ADD
    ]
    largest = max((float(np.abs(d).max(initial=0.0)) for d in deltas), default=0.0)
    off = float(np.abs(sum(deltas, np.zeros(1))).max(initial=0.0))
    assert off <= TOLERANCE * max(1.0, largest), (
        f"{len(deltas)} deltas of up to {largest:.3g} add up to {off:.3g} instead of nothing"
    )
    return largest


def pairs_contract(run: ToyRun) -> None:
    """When they are about to take their mean, learners that were thrown are near it already."""
    thrown = max(
        float(np.abs(entry.vector).max())
        for result in run.survivors
        for entry in result.ledger.entries
        if entry.kind is Kind.STEP
    )
    last = [
        next(e.vector for e in reversed(result.ledger.entries) if e.kind is Kind.SNAPSHOT)
        for result in run.survivors
    ]
    spread = _spread(last)
    assert spread <= thrown / 10, (
        f"learners do not come together: they were thrown {thrown:.3g}, and end {spread:.3g} apart"
    )


def contracts(run: ToyRun, thrown: int) -> None:
    """Once all learners were thrown, the distance between them only shrinks, to nearly nothing.

    ``thrown`` is how many learners there were to throw. It must have shrunk to a quarter after two
    thirds of the rounds: at the end all wait for each other, and any strategy comes together.
    """
    spreads: list[float] = []
    seen: set[int] = set()
    moved = {r.address.number: _first_step(r) for r in run.survivors}
    for number, exchanges in sorted(_by_round(run).items()):
        seen |= {who for who, first in moved.items() if first is not None and first <= number}
        if len(seen) == thrown:
            spreads.append(_spread([e.gave for e in exchanges]))
    for place, (before, after) in enumerate(pairwise(spreads)):
        assert after <= before + TOLERANCE * max(spreads), (
            f"learners drift apart: {before:.3g}, then {after:.3g} "
            f"({place + 1} rounds after the last was thrown)"
        )
    if spreads:
        late = spreads[len(spreads) * 2 // 3]
        assert late <= spreads[0] / 4 + TOLERANCE, (
            f"learners do not come together: {spreads[0]:.3g} at first, {late:.3g} later"
        )


def _first_step(result: Result) -> int | None:
    """The round in which a learner made its first step."""
    number = 0
    for entry in result.ledger.entries:
        if entry.kind is Kind.STEP:
            return number
        if entry.kind in (Kind.SNAPSHOT, Kind.GRADIENT):
            number = entry.round + 1
    return None


def _by_round(run: ToyRun) -> dict[int, list[Exchange]]:
    rounds: dict[int, list[Exchange]] = defaultdict(list)
    for result in run.results:
        for exchange in result.ledger.exchanges():
            rounds[exchange.round].append(exchange)
    return rounds


def _all_same(what: str, values: list[tuple[Result, Numbers | None]], exactly: bool) -> None:
    first, expected = values[0]
    assert expected is not None
    for result, value in values[1:]:
        assert value is not None
        if exactly:
            assert np.array_equal(value, expected), (
                f"{what} of {first.address.name} and {result.address.name} are not the same bits"
            )
        assert _close(value, expected), (
            f"{what} of {first.address.name} and {result.address.name} differ by "
            f"{_distance(value, expected):.3g}"
        )


def _spread(points: list[Numbers]) -> float:
    return max((_distance(a, b) for a in points for b in points), default=0.0)


def _distance(a: Numbers, b: Numbers) -> float:
    return float(np.abs(a - b).max(initial=0.0))


def _close(a: Numbers, b: Numbers) -> bool:
    return _distance(a, b) <= TOLERANCE * max(1.0, float(np.abs(b).max(initial=0.0)))
