"""Mixing matrices: what they are, what they predict, and that learners do what they predict."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from unisono.fabric import Message
from unisono.strategies import GossipFixed, GossipRandom
from unisono.strategies.exchange import ExchangingParticipant
from unisono.strategies.mixing import Mixing, complete, pair, ring
from unisono.testing.ledger import Kind, Numbers
from unisono.testing.losses import Throw
from unisono.testing.simulated import ToyCluster

Strategy = Callable[[], Any]


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
        i, j = mixing.edges[source.integers(len(mixing.edges))]
        x[[i, j]] = (x[i] + x[j]) / 2
        if step >= steps // 3:
            squares += float(((x - x.mean(axis=0)) ** 2).mean())
    measured = math.sqrt(squares / (steps - steps // 3))
    # After an exchange, before the next move: one share of the noise less than the fixed point.
    assert measured == pytest.approx(mixing.distance, rel=0.1)


def exchanges_of(
    make: Strategy, monkeypatch: pytest.MonkeyPatch, learners: int, rounds: int, **how: Any
) -> tuple[list[tuple[int, int]], list[Numbers], list[Numbers]]:
    """Who exchanged with whom, in order, the models before the first, and those at the end."""
    order: list[tuple[int, int]] = []

    def noted(method: Callable[..., None]) -> Callable[..., None]:
        def wrapper(self: ExchangingParticipant, message: Message) -> None:
            crossing = message.body["kind"] == "ask" and message.sender == self._asked
            if not crossing or self.fabric.address < message.sender:
                order.append((self.fabric.address.number, message.sender.number))
            method(self, message)

        return wrapper

    crossed = ExchangingParticipant._on_ask

    def on_ask(self: ExchangingParticipant, message: Message) -> None:
        if message.sender == self._asked and self.fabric.address < message.sender:
            order.append((self.fabric.address.number, message.sender.number))
        crossed(self, message)

    monkeypatch.setattr(ExchangingParticipant, "_answer", noted(ExchangingParticipant._answer))
    monkeypatch.setattr(ExchangingParticipant, "_on_ask", on_ask)
    run = ToyCluster(
        strategy=make(),
        learners=learners,
        total=learners * rounds,
        loss=Throw(distance=100.0),
        rate=1.0,
        **how,
    ).run()
    starts, ends = [], []
    for result in sorted(run.results, key=lambda r: r.address.number):
        entries = result.ledger.entries
        thrown = next(
            e.vector for e in entries if e.kind is Kind.STEP and np.abs(e.vector).max() > 0
        )
        starts.append(thrown)
        ends.append([e.vector for e in entries if e.kind is Kind.SNAPSHOT][-1])
    return order, starts, ends


RINGS: dict[str, tuple[Strategy, Callable[[int], Mixing]]] = {
    "fixed": (lambda: GossipFixed(every=4), ring),
    "random": (lambda: GossipRandom(every=4), complete),
}
