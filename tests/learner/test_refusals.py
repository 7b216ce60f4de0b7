"""What a learner refuses at the start, in one line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
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
    with pytest.raises(unisono.UserError, match="outside of its with statement"):
        learner.draw(dataset(), batch_size=BATCH)
    batch = next(plain_batches())
    with pytest.raises(unisono.UserError, match="outside of its with statement"):
        learner.backward(loss_of(model, batch))
    with learner, pytest.raises(unisono.UserError, match="draw a minibatch first"):
        learner.backward(loss_of(model, batch))


@pytest.mark.parametrize("drawn", [0, 1])
def test_a_loop_behind_the_with_statement(drawn: int) -> None:
    def loop() -> None:
        model = network()
        with unisono.Learner(model, sgd(model), quiet=True) as learner:
            batches = learner.draw(dataset(), batch_size=BATCH)
            for _ in range(drawn):
                learner.step(loss_of(model, next(batches)))
        for batch in batches:
            learner.step(loss_of(model, batch))

    refused(loop, "put the loop over learner.draw.. inside", alone)


@pytest.mark.parametrize("learners", [1, 2])
def test_a_step_inside_of_consensus(learners: int, together: Together) -> None:
    def loop() -> None:
        model = network()
        with unisono.Learner(model, sgd(model), quiet=True) as learner:
            for batch in learner.draw(dataset(), batch_size=BATCH):
                with learner.consensus():
                    learner.step(loss_of(model, batch))

    refused(loop, "it is to look at only", together, learners)


@pytest.mark.parametrize("strategy", ["allreduce", "static", "delay"])
def test_parameters_that_come_later(strategy: str, together: Together) -> None:
    def loop() -> None:
        model = network()
        with unisono.Learner(model, sgd(model), SHARING[strategy]) as learner:
            for number, batch in enumerate(learner.draw(dataset(), batch_size=BATCH)):
                if number == 2:
                    model.append(nn.Linear(3, 3))
                learner.step(loss_of(model, batch))

    refused(loop, "parameters are 115 numbers, and were 103", together, 2)


def test_checkpoints_that_cannot_be(tmp_path: Path) -> None:
    model = network()
    with pytest.raises(unisono.UserError, match="say where, checkpoints=FOLDER"):
        unisono.Learner(model, sgd(model), resume=True)
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", str(tmp_path / "file" / "ck")):
        with pytest.raises(unisono.UserError, match="/file is not a folder"):
            unisono.Learner(model, sgd(model), checkpoints=folder)


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
