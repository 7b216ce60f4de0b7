"""The same job once a strategy: choice and report, interruptions, divergence, bad input."""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from support.alive import is_alive
from support.commands import Command, until
from unisono.config import Config
from unisono.data import FrameSource, Part, Prep, halve, synthesise
from unisono.errors import UserError
from unisono.models import build
from unisono.report.comparison import Comparison
from unisono.report.outcome import RunOutcome, output_of
from unisono.report.time_to_target import Ceiling
from unisono.runs.directory import RunDirectory
from unisono.strategies.registry import names
from unisono.training.compare import Compare
from unisono.training.compare_variants import ComparisonRun, plan_comparison
from unisono.training.train import train

Start = Callable[..., Command]

QUICK = ["minibatch=64", "network.hidden=[16]", "network.context=1", "threads=1"]
DIVERGES = "1e30"


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A PREP with 4 held-out speakers and 2,400 frames to train on."""
    return make_prep(tmp_path_factory.mktemp("data") / "prep", speakers=24)


def make_prep(path: Path, speakers: int) -> Path:
    synthesise(
        path,
        speakers=speakers,
        utterances_per_speaker=2,
        frames_per_utterance=75,
        states=8,
        dimension=6,
        seed=3,
        noise=1.0,
    )
    return path


class Here:
    """Runs jobs in this process, and counts them; one may be interrupted, or fail."""

    def __init__(self, stop_at: int = -1, fail_at: int = -1) -> None:
        self.done: list[Path] = []
        self._stop_at = stop_at
        self._fail_at = fail_at

    def __call__(
        self, jobs: Sequence[ComparisonRun], at_a_time: int
    ) -> Generator[ComparisonRun, None, None]:
        for job in jobs:
            self._run(job)
            yield job

    def _run(self, job: ComparisonRun) -> None:
        self.done.append(job.path)
        run = RunDirectory.create(job.path, job.config, resume=True)
        if len(self.done) - 1 == self._stop_at:
            raise KeyboardInterrupt
        if len(self.done) - 1 == self._fail_at:
            output_of(run).write_text("unisono: No space left on device\n")
            return
        try:
            train(job.config, job.path, resume=True)
        except UserError as error:
            output_of(run).write_text(f"unisono: {error}\n")


def compare(prep: Path, out: Path, runner: Here, **changes: Any) -> tuple[Comparison, list[str]]:
    asked: dict[str, Any] = {
        "strategies": "averaging:every=256",
        "learners": 1,
        "rates": "0.5,1",
        "seeds": 2,
        "epochs": 2,
        "sets": QUICK,
    }
    said: list[str] = []
    test = changes.pop("test", None)
    plan = plan_comparison(prep=prep, **(asked | changes))
    compared = Compare(
        plan=plan,
        out=out,
        say=said.append,
        test=test,
        run_jobs=runner,
        measure_ceiling=two_times_as_fast,
    ).run()
    return compared, said


def two_times_as_fast(config: Config, learners: int) -> Ceiling:
    return Ceiling(learners, 2.0, 1.9, 2.1, 100.0, 200.0)


def test_what_a_comparison_leaves(small: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    comparison, said = compare(small, out, Here())
    solo, averaging = comparison.rows
    assert (solo.name, averaging.name) == ("solo", "averaging:every=256")
    # One learner that averages with nobody: the same bytes, so no difference, in any seed.
    assert averaging.minus_solo is not None
    assert (averaging.minus_solo.mean, averaging.minus_solo.low) == (0.0, 0.0)
    assert averaging.pace is not None and averaging.pace.rounds > 0
    for mine, solos in zip(averaging.targets, solo.targets, strict=True):
        assert mine.reached == solos.reached > 0
        assert mine.best == solos.best
    assert len(said) == 8
    whole = json.loads((out / "compare.json").read_text())
    assert [row["name"] for row in whole["rows"]] == ["solo", "averaging:every=256"]
    assert "<svg" in (out / "report.html").read_text()
    for cell in averaging.grid:
        for result in cell.results:
            run = RunDirectory.open(result.run)
            summary = run.read_summary()
            assert summary is not None and summary.ended == "finished"
            assert run.model.is_file() and run.report.is_file()


def test_choice_and_report_are_of_disjoint_speakers(small: Path, tmp_path: Path) -> None:
    """The figures, computed again from the saved model, speaker by speaker."""
    comparison, _ = compare(small, tmp_path / "out", Here(), rates="1", seeds=1, epochs=1)
    prep = Prep.open(small)
    source = FrameSource(prep, Part.HELDOUT, context=1)
    sums: dict[str, list[float]] = {}
    result = comparison.rows[0].grid[0].results[0]
    description = json.loads(RunDirectory(result.run).model_description.read_text())
    model = build(
        "dnn",
        seed=0,
        **{key: description[key] for key in ("inputs", "outputs", "hidden", "dropout")},
        batch_norm=description["batch_norm"],
    )
    model.load_state_dict(load_file(RunDirectory(result.run).model))
    model.eval()
    for place, u in enumerate(source.utterances):
        x, y = source.whole(place)
        with torch.no_grad():
            logprob = model(x).double().log_softmax(1)[torch.arange(len(y)), y].sum()
        total = sums.setdefault(prep.table.speakers[prep.table.speaker[u]], [0.0, 0.0])
        total[0] += float(logprob)
        total[1] += len(y)
    assert len(sums) == 4
    assert not set(comparison.choosing) & set(comparison.reporting)
    assert (frozenset(comparison.choosing), frozenset(comparison.reporting)) == halve(sums)

    def mean(speakers: Any) -> float:
        return sum(sums[s][0] for s in speakers) / sum(sums[s][1] for s in speakers)

    assert result.best is not None
    assert result.best.choice_logprob == pytest.approx(mean(comparison.choosing), abs=1e-5)
    assert result.best.logprob == pytest.approx(mean(comparison.reporting), abs=1e-5)
    assert mean(comparison.choosing) != pytest.approx(mean(comparison.reporting), abs=1e-3)


def test_it_goes_on_and_nothing_is_done_twice(small: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    first = Here(stop_at=3)
    with pytest.raises(KeyboardInterrupt):
        compare(small, out, first)
    assert not (out / "compare.json").exists()
    before = {path: (path / "summary.json").stat().st_mtime_ns for path in first.done[:3]}
    second = Here()
    comparison, said = compare(small, out, second)
    assert second.done[0] == first.done[3]
    assert len(second.done) == 5
    assert not set(second.done) & set(before)
    assert {path: (path / "summary.json").stat().st_mtime_ns for path in before} == before
    assert sum("done before" in line for line in said) == 3
    assert all(row.ended is RunOutcome.FINISHED for row in comparison.rows)
    third = Here()
    again, _ = compare(small, out, third)
    assert third.done == []
    assert again.to_json(out) == comparison.to_json(out)


def test_a_diverging_rate_is_shown_and_ends_nothing(small: Path, tmp_path: Path) -> None:
    out, runner = tmp_path / "out", Here()
    unbounded = {"sets": [*QUICK, "rate.max_change=0"], "seeds": 1, "epochs": 1}
    comparison, said = compare(small, out, runner, rates=f"1,{DIVERGES}", **unbounded)
    for row in comparison.rows:
        assert [cell.results[0].ended for cell in row.grid] == [
            RunOutcome.FINISHED,
            RunOutcome.DIVERGED,
        ]
        assert row.chosen is row.grid[0]
    assert sum("not finite" in line for line in said) == 2
    comparison.complain()
    compare(small, out, runner, rates=f"1,{DIVERGES}", **unbounded)
    assert len(runner.done) == 4  # It would diverge again: it is not done again.
    alone, _ = compare(small, tmp_path / "b", Here(), rates=DIVERGES, **unbounded)
    assert [row.ended for row in alone.rows] == [RunOutcome.DIVERGED] * 2
    assert "<svg" not in (tmp_path / "b" / "report.html").read_text()
    assert any(line.startswith("solo") and "diverged" in line for line in alone.lines())


def test_a_run_that_failed_is_done_again(small: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    one = {"rates": "1", "seeds": 1, "epochs": 1}
    comparison, _ = compare(small, out, Here(fail_at=1), **one)
    assert [row.ended for row in comparison.rows] == [RunOutcome.FINISHED, RunOutcome.FAILED]
    with pytest.raises(UserError, match=r"1 of 2 runs failed, .*No space left"):
        comparison.complain()
    runner = Here()
    comparison, _ = compare(small, out, runner, **one)
    assert len(runner.done) == 1
    comparison.complain()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rates": "1"}, "rates"),
        ({"seeds": 1}, "seeds"),
        ({"strategies": "allreduce"}, "strategies"),
        ({"epochs": 3}, "epochs 2, and this is epochs 3"),
        (
            {"sets": [*QUICK, "rate.momentum=0.5"]},
            "rate.momentum 0.9, and this is rate.momentum 0.5",
        ),
        ({"sets": [*QUICK, "rate.end=0.5"]}, "no rate.end, and this is rate.end 0.5"),
    ],
)
def test_other_settings_are_refused(
    small: Path, tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    out = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        compare(small, out, Here(stop_at=0))
    with pytest.raises(UserError, match=f"was begun with {words}.*--out") as caught:
        compare(small, out, Here(), **changes)
    assert "\n" not in str(caught.value)


def test_other_data_are_refused(small: Path, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        compare(small, tmp_path / "out", Here(stop_at=0))
    other = make_prep(tmp_path / "prep", speakers=25)
    with pytest.raises(UserError, match="was begun with prep"):
        compare(other, tmp_path / "out", Here())


def test_bad_input_is_refused_before_anything_is_made(small: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    few = make_prep(tmp_path / "few", speakers=5)
    for prep, changes, words in (
        (small, {"strategies": "averagin"}, "averaging"),
        (small, {"strategies": "averaging:evry=1"}, "evry"),
        (small, {"strategies": "averaging", "learners": 5000}, "5000 learners"),
        (tmp_path / "nowhere", {}, "nowhere"),
        (few, {}, "1 held-out speaker"),
        (small, {"test": tmp_path / "nowhere"}, "--test .*nowhere: there is no such"),
    ):
        with pytest.raises(UserError, match=words):
            compare(prep, out, Here(), **changes)
        assert not out.exists()


def test_a_directory_of_something_else_is_refused(small: Path, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(UserError, match="no comparison"):
        compare(small, tmp_path, Here())
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="is not a directory"):
        compare(small, tmp_path / "file", Here())


def test_two_at_once_are_refused(small: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        compare(small, out, Here(stop_at=0))
    descriptor = os.open(out, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        with pytest.raises(UserError, match="another `unisono compare`"):
            compare(small, out, Here())
    finally:
        os.close(descriptor)


@pytest.mark.long
@pytest.mark.timeout(240)
def test_a_killed_comparison_leaves_no_process_and_goes_on(
    start: Start, small: Path, tmp_path: Path
) -> None:
    sets = [word for each in QUICK for word in ("--set", each)]
    command = [
        "compare", small, "--strategies", "averaging", "--learners", 1, "--out", "out",
        "--rates", "1", "--epochs", 40, "--solo-optimizers", "sgd", *sets,
    ]  # fmt: skip
    runs = tmp_path / "out" / "runs"
    solo, averaging = (runs / name / "1" / "0" for name in ("solo", "averaging"))
    begun = start(*command)
    until((averaging / "metrics.jsonl").exists, what="the second run to begin")
    (child,) = begun.children("train")
    os.kill(begun.process.pid, signal.SIGKILL)
    begun.process.wait()
    until(lambda: not is_alive(child), what="its run to die with it")
    done = (solo / "summary.json").stat().st_mtime_ns
    again = start(*command)
    assert again.wait() == 0, again.output()
    assert (solo / "summary.json").stat().st_mtime_ns == done
    output = again.output()
    assert output.count("(done before)") == 1
    assert re.search(r"strategy +averaging", output_of(RunDirectory(averaging)).read_text())
    assert "minus solo" in output
    whole = json.loads((tmp_path / "out" / "compare.json").read_text())
    assert [row["ended"] for row in whole["rows"]] == ["finished"] * 2
    events = RunDirectory(averaging).read_metrics()
    assert sum(event["event"] == "joined" for event in events) == 1  # Begun anew, not gone on with.


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_every_strategy_can_be_compared(start: Start, small: Path, tmp_path: Path) -> None:
    others = [name for name in names() if name != "solo"]
    sets = [word for each in QUICK for word in ("--set", each)]
    command = start(
        "compare", small, "--strategies", ",".join(others), "--learners", 2, "--out", "out",
        "--rates", "1,2", "--epochs", 2, "--jobs", 2, "--solo-optimizers", "sgd", *sets,
    )  # fmt: skip
    until(lambda: len(command.children("train")) == 2, what="two runs at a time")
    assert command.wait(1100) == 0, command.output()
    whole = json.loads((tmp_path / "out" / "compare.json").read_text())
    assert [row["name"] for row in whole["rows"]] == ["solo", *others]
    assert [row["learners"] for row in whole["rows"]] == [1] + [2] * len(others)
    for row in whole["rows"]:
        assert [cell["rate"] for cell in row["grid"]] == [1.0, 2.0]
        assert all(run["ended"] == "finished" for cell in row["grid"] for run in cell["runs"])
        assert row["rate"] in (1.0, 2.0)
