"""What a user may give to a learner, and what is refused in one line."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import unisono
from support.loops import BATCH, alone, dataset, loss_of, network, sgd
from unisono.learner.arguments import event_fields
from unisono.runs.directory import RunDirectory
from unisono.strategies import Averaging, GossipRandom

Together = Callable[..., Any]


def trained(**options: Any) -> None:
    model = network()
    draw = {key: options.pop(key) for key in ("epochs", "batch_size") if key in options}
    with unisono.Learner(model, sgd(model), quiet=True, **options) as learner:
        for batch in learner.draw(dataset(), **{"batch_size": BATCH, **draw}):
            learner.step(loss_of(model, batch))


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"strategy": Averaging}, "strategy is <class .*give a name"),
        ({"strategy": 5}, "strategy is 5"),
        ({"prefetch": -1}, "prefetch is -1: it must be at least 0"),
        ({"prefetch": 1.5}, "prefetch is 1.5: it must be a whole number"),
        ({"seed": 1.5}, "seed is 1.5: it must be a whole number"),
        ({"seed": "3"}, "seed is '3'"),
        ({"keep": 0}, "keep is 0: it must be at least 1"),
        ({"keep": True}, "keep is True"),
        ({"checkpoint_every": -5}, "checkpoint_every is -5: it must be at least 0"),
        ({"epochs": 2.5}, "epochs is 2.5"),
        ({"epochs": "2"}, "epochs is '2'"),
        ({"epochs": 0}, "epochs is 0: it must be at least 1"),
        ({"batch_size": 2.5}, "batch_size is 2.5"),
        ({"batch_size": -3}, "batch_size is -3"),
        ({"epochs": 10**30}, "epochs is 1000.*: it must be at most 1000000"),
        ({"batch_size": 10**30}, "batch_size is 1000.*: it must be at most"),
        ({"prefetch": 10**9}, "prefetch is 1000000000: it must be at most 10000"),
        ({"seed": 2**63}, "seed is 9223372036854775808: it must be at most"),
    ],
)
def test_what_makes_no_sense_is_one_line(options: dict[str, Any], why: str) -> None:
    def loop() -> None:
        with pytest.raises(unisono.UserError, match=why) as caught:
            trained(**options)
        assert "\n" not in str(caught.value)

    alone(loop)


@pytest.mark.parametrize("epochs", ["2", 2.5, -1])
def test_epochs_of_the_learner_are_a_whole_number(epochs: Any) -> None:
    model = network()
    with pytest.raises(unisono.UserError, match="epochs is"):
        unisono.Learner(model, sgd(model), epochs=epochs)


def test_whole_numbers_of_numpy_and_torch_are_taken() -> None:
    alone(lambda: trained(seed=np.int64(3), epochs=torch.tensor(1), batch_size=np.int32(BATCH)))


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda model: unisono.Learner(None, sgd(model)), "model is NoneType"),
        (lambda model: unisono.Learner(model, None), "optimizer is None"),
        (lambda model: unisono.Learner(model, [sgd(model), 3]), "optimizer is 3"),
        (lambda model: unisono.Learner(model, []), "needs an optimizer"),
        (lambda model: unisono.Learner(model, sgd(network())), "no parameter of this model"),
    ],
)
def test_model_and_optimizer_belong_together(make: Callable[..., Any], why: str) -> None:
    with pytest.raises(unisono.UserError, match=why):
        make(network())


# Rounds.


@pytest.mark.parametrize(
    ("strategy", "learners", "said"),
    [
        (Averaging(every=16384), 2, True),
        (GossipRandom(every=16384), 2, True),
        (Averaging(every=2 * BATCH), 2, True),
        (Averaging(every=1), 2, False),  # cannot be smaller than a minibatch
        (Averaging(), 2, False),
        (Averaging(every=16384), 1, False),
    ],
)
def test_a_run_of_few_rounds_is_told_once(
    strategy: Any, learners: int, said: bool, together: Together, caplog: pytest.LogCaptureFixture
) -> None:
    def loop() -> None:
        model = network()
        with unisono.Learner(model, sgd(model), strategy) as learner:
            for batch in learner.draw(dataset(), batch_size=BATCH):
                learner.step(loss_of(model, batch))

    with caplog.at_level(logging.WARNING, "unisono"):
        together(loop, learners)
    lines = [record.getMessage() for record in caplog.records if "round" in record.getMessage()]
    assert len(lines) == said
    if said:
        assert f"every={strategy.every} leaves" in lines[0] and "every=auto" in lines[0]


# Events.


def test_events_take_numbers_of_torch_and_numpy(tmp_path: Path) -> None:
    def loop() -> None:
        model = network()
        with unisono.Learner(model, sgd(model), quiet=True, checkpoints=tmp_path) as learner:
            for batch in learner.draw(dataset(), batch_size=BATCH):
                loss = loss_of(model, batch)
                learner.step(loss)
                rate = np.float32(0.5)
                learner.event("seen", loss=loss, rate=rate, both=(torch.tensor(2), "a"))

    alone(loop)
    events = [e for e in RunDirectory(tmp_path).read_metrics() if e["event"] == "seen"]
    assert len(events) == len(dataset()) // BATCH
    assert isinstance(events[0]["loss"], float)
    assert events[0]["rate"] == 0.5 and events[0]["both"] == [2, "a"]


@pytest.mark.parametrize("value", [torch.ones(2), np.ones(2), object(), {1, 2}, b"a"])
def test_events_refuse_what_is_no_number(value: Any) -> None:
    with pytest.raises(unisono.UserError, match="event 'seen': 'it' is a ") as caught:
        event_fields("seen", {"it": value})
    assert "\n" not in str(caught.value)
    with pytest.raises(unisono.UserError, match=r"event 'seen' is 3000\d\d characters"):
        event_fields("seen", {"it": "x" * 300_000})
    with pytest.raises(unisono.UserError, match="'learner' is set for every event"):
        event_fields("seen", {"learner": 1})
