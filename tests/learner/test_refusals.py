"""What a learner refuses at the start, in one line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import unisono
from support.loops import (
    BATCH,
    SHARING,
    Ran,
    alone,
    dataset,
    loss_of,
    network,
    plain_batches,
    sgd,
)
from unisono.learner.placement import find_placement

Together = Callable[..., Ran]


def refused(loop: Callable[[], None], match: str, together: Callable[..., Any], *n: int) -> None:
    with pytest.raises(unisono.UserError, match=match) as caught:
        together(loop, *n)
    assert "\n" not in str(caught.value)


def test_more_learners_than_minibatches(together: Together) -> None:
    def loop() -> None:
        model = network()
        with unisono.Learner(model, sgd(model), "allreduce") as learner:
            for batch in learner.draw(dataset(16), batch_size=BATCH):
                learner.step(loss_of(model, batch))

    refused(loop, "3 learners and only 2 minibatches", together, 3)


@pytest.mark.parametrize("strategy", SHARING)
def test_as_many_learners_as_minibatches(strategy: str, together: Together) -> None:
    def loop() -> None:
        model = network()
        with unisono.Learner(model, sgd(model), SHARING[strategy]) as learner:
            for batch in learner.draw(dataset(3 * BATCH), batch_size=BATCH):
                learner.step(loss_of(model, batch))

    assert together(loop, 3).counts.committed == 3


def test_a_second_draw() -> None:
    model = network()

    def loop() -> None:
        with unisono.Learner(model, sgd(model)) as learner:
            for batch in learner.draw(dataset(), batch_size=BATCH):
                learner.step(loss_of(model, batch))
            learner.draw(dataset(), batch_size=BATCH)

    refused(loop, "was called before", alone)


def test_outside_of_the_with_statement() -> None:
    model = network()
    learner = unisono.Learner(model, sgd(model))
    with pytest.raises(unisono.UserError, match="with statement"):
        learner.draw(dataset(), batch_size=BATCH)
    with pytest.raises(unisono.UserError, match="draw a minibatch first"):
        learner.backward(loss_of(model, next(plain_batches())))


@pytest.mark.parametrize("what", ["model", "seed", "strategy", "batch size", "epochs"])
def test_learners_that_differ(what: str, together: Together) -> None:
    def loop() -> None:
        odd = find_placement().number == 1
        model: nn.Module = network()
        if odd and what == "model":
            model = nn.Sequential(model, nn.Linear(3, 3))
        strategy = unisono.Averaging(every=32 if odd and what == "strategy" else 16)
        seed = int(odd and what == "seed")
        with unisono.Learner(model, sgd(model), strategy, seed=seed) as learner:
            size = 4 if odd and what == "batch size" else BATCH
            epochs = 2 if odd and what == "epochs" else 1
            for batch in learner.draw(dataset(), epochs=epochs, batch_size=size):
                learner.step(loss_of(model, batch))

    refused(loop, "the learners differ in", together, 2)


def test_solo_with_several_learners(together: Together) -> None:
    def loop() -> None:
        model = network()
        with unisono.Learner(model, sgd(model), "solo") as learner:
            for batch in learner.draw(dataset(), batch_size=BATCH):
                learner.step(loss_of(model, batch))

    refused(loop, "solo is for one learner", together, 2)


def test_parameters_that_cannot_be_shared() -> None:
    lazy = nn.LazyLinear(3)
    with pytest.raises(unisono.UserError, match="no shape yet"):
        unisono.Learner(lazy, torch.optim.SGD(lazy.parameters(), lr=0.1))
    turned = nn.Linear(3, 3, dtype=torch.complex64)
    with pytest.raises(unisono.UserError, match="complex"):
        unisono.Learner(turned, torch.optim.SGD(turned.parameters(), lr=0.1))
    with pytest.raises(unisono.UserError, match="needs an optimizer"):
        unisono.Learner(network(), [])
    with pytest.raises(unisono.UserError, match="keep"):
        model = network()
        unisono.Learner(model, sgd(model), keep=0)
