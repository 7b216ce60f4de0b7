"""Mixing matrices: what they are, what they predict, and that learners do what they predict."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from unisono.fabric import Message
from unisono.fabric.simulated.schedulers import SeededScheduler
from unisono.strategies import GossipFixed, GossipRandom
from unisono.strategies.engines.pairwise import PairwiseParticipant
from unisono.strategies.mixing import Mixing, complete, pair, ring
from unisono.testing.cluster import ToyRun
from unisono.testing.ledger import Kind, Numbers
from unisono.testing.losses import Throw
from unisono.testing.simulated import ToyCluster


@pytest.mark.parametrize("learners", [2, 3, 4, 5, 8, 13])
@pytest.mark.parametrize("kind", [ring, complete])
def test_matrices_are_doubly_stochastic(kind: Callable[[int], Mixing], learners: int) -> None:
    mixing = kind(learners)
    for matrix in [mixing.expected, *(pair(learners, i, j) for i, j in mixing.edges)]:
        np.testing.assert_allclose(matrix.sum(axis=0), 1, atol=1e-14)
        np.testing.assert_allclose(matrix, matrix.T)
        assert (matrix >= 0).all()
    for i, j in mixing.edges:
        matrix = pair(learners, i, j)
        np.testing.assert_allclose(matrix @ matrix, matrix)


@pytest.mark.parametrize("n", [3, 4, 5, 8, 16, 33])
def test_gaps_are_those_of_the_closed_forms(n: int) -> None:
    assert ring(n).gap == pytest.approx((1 - math.cos(2 * math.pi / n)) / n)
    assert complete(n).gap == pytest.approx(1 / (n - 1))


def test_two_learners_are_one_exchange_from_their_mean() -> None:
    assert ring(2).gap == complete(2).gap == pytest.approx(1.0)
    assert ring(1).gap == 1.0 and ring(1).explain() == []


@pytest.mark.parametrize("n", [2, 3, 4, 8, 16])
def test_the_distance_on_a_complete_graph_has_a_closed_form(n: int) -> None:
    assert complete(n).distance == pytest.approx((n - 1) / n)


@pytest.mark.parametrize("n", [4, 8])
@pytest.mark.parametrize("kind", [ring, complete])
def test_the_predicted_distance_is_that_of_a_random_walk(
    kind: Callable[[int], Mixing], n: int
) -> None:
    """Moves of length 1 between two exchanges of a learner, along random edges."""
    mixing = kind(n)
    source = np.random.default_rng(0)
    x, squares, steps = np.zeros((n, 400)), 0.0, 6000
    for step in range(steps):
        x += source.standard_normal(x.shape) / math.sqrt(n)
        if step >= steps // 3:
            squares += float(((x - x.mean(axis=0)) ** 2).mean())
        i, j = mixing.edges[source.integers(len(mixing.edges))]
        x[[i, j]] = (x[i] + x[j]) / 2
    measured = math.sqrt(squares / (steps - steps // 3))
    assert measured == pytest.approx(mixing.distance, rel=0.03)


RINGS: dict[str, tuple[Callable[[], Any], Callable[[int], Mixing]]] = {
    "fixed": (lambda: GossipFixed(every=8), ring),
    "random": (lambda: GossipRandom(every=8), complete),
}


class Watched:
    """Exchanges in the order in which they happen, and the distance from the mean after each.

    An exchange happens when the second of the two models is taken: until then the first one's
    learner takes part in no other. Where two questions cross, the first who sees it counts it.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.pairs: list[tuple[int, int]] = []
        crossed: set[frozenset[int]] = set()
        watched = self

        answer, on_ask = PairwiseParticipant._answer, PairwiseParticipant._on_ask

        def noted_answer(self: PairwiseParticipant, message: Message) -> None:
            watched.pairs.append((self.fabric.address.number, message.sender.number))
            answer(self, message)

        def noted_ask(self: PairwiseParticipant, message: Message) -> None:
            if message.sender == self._asked:
                pair = self.fabric.address.number, message.sender.number
                if frozenset(pair) not in crossed:
                    watched.pairs.append(pair)
                crossed.symmetric_difference_update([frozenset(pair)])
            on_ask(self, message)

        monkeypatch.setattr(PairwiseParticipant, "_answer", noted_answer)
        monkeypatch.setattr(PairwiseParticipant, "_on_ask", noted_ask)


def thrown_and_ended(run: ToyRun) -> tuple[Numbers, Numbers]:
    """Where each learner's own step threw it, and where it was before the last mean."""
    thrown, ended = [], []
    for result in sorted(run.results, key=lambda r: r.address.number):
        entries = result.ledger.entries
        thrown.append(next(e.vector for e in entries if e.kind is Kind.STEP))
        ended.append([e.vector for e in entries if e.kind is Kind.SNAPSHOT][-1])
    return np.array(thrown), np.array(ended)


@pytest.mark.parametrize("learners", [2, 3, 5, 8])
@pytest.mark.parametrize("name", RINGS)
def test_learners_are_where_the_product_of_their_matrices_says(
    name: str, learners: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All are thrown before the first exchange; then X = W_k ... W_2 W_1 X_0, to rounding."""
    watched = Watched(monkeypatch)
    run = ToyCluster(
        strategy=RINGS[name][0](),
        learners=learners,
        total=learners * 16,
        loss=Throw(distance=100.0),
        rate=1.0,
        scheduler=SeededScheduler(learners),
    ).run()
    thrown, ended = thrown_and_ended(run)
    common = numbers_at_start(run)
    x = common + thrown
    for i, j in watched.pairs:
        x = pair(learners, i, j) @ x
    np.testing.assert_allclose(ended, x, atol=1e-9)
    assert len(watched.pairs) >= learners


def numbers_at_start(run: ToyRun) -> Numbers:
    """The model with which all begin: that of the first learner."""
    first = min(run.results, key=lambda r: r.address)
    return next(e.vector for e in first.ledger.entries if e.kind is Kind.BEGIN)


@pytest.mark.parametrize("slow", [{}, {1: 5.0}], ids=["equal", "one slow"])
@pytest.mark.parametrize("name", RINGS)
def test_the_distance_shrinks_as_fast_as_the_gap_predicts(
    name: str, slow: dict[int, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An exchange leaves at most 1 - gap of the squared distance on average, and not much less.

    Every edge is used about as often as every other, but in turns, not drawn at random: so it is a
    little faster than predicted. A slow learner begins few exchanges, but takes part in many.
    """
    learners = 8
    make, kind = RINGS[name]
    logs: list[float] = []
    for seed in range(6):
        watched = Watched(monkeypatch)
        run = ToyCluster(
            strategy=make(),
            learners=learners,
            total=learners * 60,
            loss=Throw(distance=100.0),
            rate=1.0,
            scheduler=SeededScheduler(seed),
            slowness=slow,
        ).run()
        x = numbers_at_start(run) + thrown_and_ended(run)[0]
        first = float(((x - x.mean(axis=0)) ** 2).sum())
        pairs = watched.pairs[:120]
        for i, j in pairs:
            x = pair(learners, i, j) @ x
        logs.append(math.log(float(((x - x.mean(axis=0)) ** 2).sum()) / first) / len(pairs))
        monkeypatch.undo()
    predicted = math.log(1 - kind(learners).gap)
    assert 3.5 * predicted < float(np.mean(logs)) < 0.7 * predicted
