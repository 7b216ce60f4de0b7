"""Runs that diverge: found, taken back to a checkpoint at a lower rate, ended if it comes again."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from support.commands import Start, later
from unisono.cli.main import main
from unisono.config import Config, load
from unisono.errors import Diverged
from unisono.fabric import learner
from unisono.launch.exit_codes import DIVERGED
from unisono.learner.checkpoint_files import NotWrittenError, checkpoints
from unisono.learner.checkpointer import Checkpointer
from unisono.learner.optimizers import Optimizers
from unisono.report.outcome import RunOutcome, read_result
from unisono.runs.directory import RunDirectory
from unisono.strategies.base import StateBundle
from unisono.training import divergence
from unisono.training.divergence import MARGIN, DivergenceWatch
from unisono.training.rates import make_schedule
from unisono.training.resumption import check_resumable
from unisono.training.train import train
from unisono.training.worker import checkpoint_interval

STATES = 30
UNIFORM = -math.log(STATES)
SMALL = ["network.hidden=[16]", "threads=1", "minibatch=64", "optimizer=sgd", "epochs=2"]
EXPLODES = ["rate.start=1e4", "rate.max_change=0"]
STRATEGIES = [
    "solo",
    later("averaging"),
    later("gossip-random"),
    later("server"),
    later("allreduce"),
]


def config(prep: Path, *sets: str) -> Config:
    return load(None, [*SMALL, *sets], {"prep": str(prep)})


def with_strategy(strategy: str) -> list[str]:
    return [f"strategy.name={strategy}", f"learners={1 if strategy == 'solo' else 2}"]


def scored(watch: DivergenceWatch, progress: float, logprob: float, loss: float | None) -> None:
    """A validation, after a report on the training."""
    if loss is not None:
        watch({"event": "train", "learner": 0, "progress": progress, "loss": loss})
    watch({"event": "validation", "progress": progress, "logprob": logprob})


# What counts as divergence.


def test_two_clearly_worse_validations_in_a_row_are_divergence() -> None:
    watch = DivergenceWatch(STATES)
    scored(watch, 0.1, -1.0, 1.2)
    scored(watch, 0.2, -1.0 - 1.1 * MARGIN, 2.0)
    scored(watch, 0.3, -1.1, 1.2)  # it has recovered
    scored(watch, 0.4, -1.0 - 1.1 * MARGIN, 2.0)
    with pytest.raises(Diverged, match=r"fell from -1\.00 to -1\.60: lower the learning rate"):
        scored(watch, 0.5, -1.6, 2.0)
    assert watch.first_bad == 0.4 and watch.progress == 0.5


def test_a_little_worse_is_not() -> None:
    watch = DivergenceWatch(STATES)
    scored(watch, 0.1, -1.0, 1.2)
    for progress in (0.2, 0.3, 1.0):
        scored(watch, progress, -1.0 - 0.9 * MARGIN, 2.0)


def test_a_model_that_overfits_does_not_diverge() -> None:
    watch = DivergenceWatch(STATES)
    scored(watch, 0.1, -1.0, 1.2)
    for progress in (0.2, 0.3, 0.4, 1.0):
        scored(watch, progress, -3.0, 0.1)
    assert watch.first_bad is None


@pytest.mark.parametrize("logprob", [math.nan, -math.inf, None])
def test_one_that_is_not_finite_is_enough(logprob: Any) -> None:
    watch = DivergenceWatch(STATES)
    with pytest.raises(Diverged, match="not finite"):
        watch({"event": "validation", "progress": 0.1, "logprob": logprob})


def test_an_untrained_model_is_the_least_to_be_beaten() -> None:
    watch = DivergenceWatch(STATES)
    scored(watch, 0.1, UNIFORM - 0.9 * MARGIN, 5.0)
    scored(watch, 0.2, -20.0, 25.0)
    with pytest.raises(Diverged, match="fell from -3"):
        scored(watch, 0.3, -20.0, 25.0)


def test_the_last_validation_has_no_second() -> None:
    watch = DivergenceWatch(STATES)
    scored(watch, 0.9, -1.0, 1.2)
    with pytest.raises(Diverged):
        scored(watch, 1.0, -9.0, 10.0)


def test_what_comes_after_the_checkpoint_is_forgotten() -> None:
    watch = DivergenceWatch(STATES)
    scored(watch, 0.1, -2.0, 2.2)
    scored(watch, 0.4, -1.0, 1.2)
    watch.rewind(0.2)
    assert not watch.is_confirmed and watch.progress == 0.2
    for progress in (0.3, 0.4, 1.0):
        scored(watch, progress, -2.4, 2.4)  # not worse than at 0.1
    assert watch.is_confirmed


# The learning rate.


def test_the_factor_multiplies_the_rate_throughout() -> None:
    for sets in (["learners=4"], ["rate.schedule=warmup"], ["strategy.name=solo"]):
        whole, half = (make_schedule(load(None, [*sets, f"rate.factor={f}"], {})) for f in (1, 0.5))
        for progress in (0.0, 0.3, 1.0):
            assert half.rate(progress) == pytest.approx(0.5 * whole.rate(progress), rel=1e-12)


def test_a_resumption_goes_on_with_the_factor(prep: Path, tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run", config(prep, "rate.factor=0.25"))
    again = load(run.config, [], {})
    assert again.rate.factor == 0.25
    (run.checkpoints / "00000001").mkdir()
    check_resumable(run, load(run.config, ["rate.factor=1.0", "rate.retries=0"], {}))


# Checkpoints.


def test_a_model_that_is_not_finite_is_not_kept(tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 2)
    optimizers = Optimizers([torch.optim.SGD(model.parameters(), 0.1)], lambda: True, lambda: None)
    checkpointer = Checkpointer(tmp_path, learner(0), 0, model, optimizers, {}, {})
    with torch.no_grad():
        model.bias[0] = math.inf
    with pytest.raises(NotWrittenError, match="not finite"):
        checkpointer.write(0, StateBundle())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("epoch", "sets", "interval"),
    [
        (1_000_000, ["learners=1"], 250_000),
        (1_000_000, ["learners=8"], 8 * 250 * 256),
        (10_000, ["learners=8"], 10_000),
        (1_000_000, ["checkpoint.every=7000"], 7000),
    ],
)
def test_checkpoints_are_frequent_where_data_is_plentiful(
    epoch: int, sets: list[str], interval: int
) -> None:
    assert checkpoint_interval(load(None, sets, {}), epoch) == interval


# Whole runs.


@pytest.mark.timeout(280)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_run_that_explodes_goes_on_at_a_lower_rate(
    strategy: str,
    prep: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """To the start: there was nothing good yet. What is learned afterwards is as without it."""
    monkeypatch.setattr(divergence, "BACK_OFF", 2.0**-17)
    summary = train(config(prep, *with_strategy(strategy), *EXPLODES), tmp_path / "run")
    assert summary.ended == "finished"
    assert summary.validation_logprob is not None and summary.validation_logprob > UNIFORM + 1
    said = [line for line in capfd.readouterr().err.splitlines() if "diverged at" in line]
    assert len(said) == summary.divergences == 1
    assert "): back to the start, learning rate x 7.62939e-06" in said[0]
    run = RunDirectory(tmp_path / "run")
    assert run.read_config().rate.factor == summary.rate_factor == 2.0**-17
    events = [event for event in run.read_metrics() if event["event"] == "diverged"]
    assert [(event["to"], event["rate_factor"]) for event in events] == [(0.0, 2.0**-17)]
    assert "diverged    1 time; the learning rate is x 7.62939e-06" in summary.lines()
    assert summary.minibatches.committed + summary.minibatches.skipped == 2 * 300


@pytest.mark.timeout(280)
@pytest.mark.parametrize("strategy", ["solo", later("averaging")])
def test_a_run_that_diverges_again_and_again_ends_in_one_line(
    strategy: str, prep: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    sets = [*with_strategy(strategy), *EXPLODES, "rate.retries=1"]
    with pytest.raises(Diverged, match=r"diverged 2 times without progress, .* x 0\.5 ") as caught:
        train(config(prep, *sets), run)
    assert "\n" not in str(caught.value)
    assert capfd.readouterr().err.count("diverged at") == 1
    result = read_result(run, 0)
    assert result.ended is RunOutcome.DIVERGED


@pytest.mark.timeout(280)
def test_its_exit_status_says_so(
    prep: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    sets = [word for each in [*SMALL, *EXPLODES, "rate.retries=0"] for word in ("--set", each)]
    out = tmp_path / "run"
    monkeypatch.setattr("sys.argv", ["unisono", "train", str(prep), "--out", str(out), *sets])
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 2
    last = capfd.readouterr().err.splitlines()[-1]
    assert last.startswith("unisono: learner 0: 10 steps were not finite") and "x 0.5" not in last
    assert DIVERGED != 2  # what a learner alone says to its launcher


@pytest.mark.timeout(280)
@pytest.mark.parametrize("strategy", ["solo", later("averaging"), later("gossip-random")])
def test_a_consensus_that_is_clearly_worse_leads_back_to_a_checkpoint(
    strategy: str,
    prep: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """The validation at the end of the first attempt is spoiled; its checkpoints are good."""
    real = DivergenceWatch.__call__
    spoiled: list[float] = []

    def spoil(self: DivergenceWatch, event: dict[str, Any]) -> None:
        if event["event"] == "validation" and event["progress"] >= 1 and not spoiled:
            spoiled.append(event["progress"])
            event = {**event, "logprob": None}
        real(self, event)

    monkeypatch.setattr(DivergenceWatch, "__call__", spoil)
    sets = [*with_strategy(strategy), "checkpoint.every=6400", "rate.start=0.05"]
    summary = train(config(prep, *sets), tmp_path / "run")
    assert summary.ended == "finished" and summary.divergences == 1 == len(spoiled)
    error = capfd.readouterr().err
    assert "diverged at 100.0% (the held-out log-prob is not finite): back to the ch" in error
    run = RunDirectory(tmp_path / "run")
    (event,) = [event for event in run.read_metrics() if event["event"] == "diverged"]
    assert 0.3 < event["to"] < 1 and event["rate_factor"] == 0.5
    # What the checkpoint holds is counted once, and was not trained again.
    assert summary.minibatches.committed == 2 * 300
    assert summary.examples == 2 * 19200
    assert checkpoints(run.checkpoints)


@pytest.mark.timeout(280)
@pytest.mark.parametrize("optimizer", ["sgd", "ng-sgd", "adamw"])
@pytest.mark.parametrize("multiple", [2, 4, 8])
def test_rates_that_are_too_high_end_with_a_usable_model(
    optimizer: str, multiple: int, prep: Path, tmp_path: Path
) -> None:
    base = config(prep, f"optimizer={optimizer}", "epochs=1")
    start = base.start_rate * multiple
    summary = train(
        config(prep, f"optimizer={optimizer}", "epochs=1", f"rate.start={start}"), tmp_path / "run"
    )
    assert summary.validation_logprob is not None and summary.validation_logprob > UNIFORM + 0.5


SCRIPT = """
import torch, unisono
model = torch.nn.Linear(4, 2)
data = [(torch.randn(4), 0) for _ in range(64)]
with unisono.Learner(model, torch.optim.SGD(model.parameters(), 0.01), "gossip-random") as learner:
    for step, (x, y) in enumerate(learner.draw(data, epochs=1_000_000, batch_size=4)):
        loss = torch.nn.functional.cross_entropy(model(x), y)
        learner.step(loss * (float("nan") if learner.number == 1 else 1.0))
        if learner.number == 2 and step == 20:
            learner.stop()
assert all(p.isfinite().all() for p in model.parameters())
"""


@pytest.mark.timeout(280)
@pytest.mark.long
def test_a_learner_that_diverges_alone_is_replaced(start: Start, tmp_path: Path) -> None:
    """The run ends only because the one that replaces it ends it."""
    (tmp_path / "script.py").write_text(SCRIPT)
    command = start("launch", "--learners", 2, "--threads", 1, "script.py")
    assert command.wait(250) == 0, command.output()
    lines = command.output().splitlines()
    said = "unisono: learner 1: 10 steps were not finite, the last ten in a row"
    assert sum(line.startswith(said) for line in lines) == 1
    assert "learner 1 diverged; the others go on; learner 2 replaces it" in lines
