"""What a resumption may change, and what a refused run leaves behind."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path
from typing import Any

import pytest

from unisono.config import Config, load
from unisono.coordinator.journal import FileJournal
from unisono.coordinator.messages import Command, Join
from unisono.data import Part, Prep
from unisono.errors import UserError
from unisono.fabric import learner
from unisono.fabric.local import background
from unisono.launch.coordinator_main import JOURNAL, OUTCOME, has_begun, read_outcome
from unisono.report.history import History
from unisono.runs.directory import RunDirectory
from unisono.training import train as training
from unisono.training.builders import committed_examples
from unisono.training.resumption import check_resumable
from unisono.training.train import train
from unisono.watch.live_run import LiveRun

SMALL = ["network.hidden=[16]", "validation.enabled=false", "threads=1"]


def config(prep: Path, *sets: str) -> Config:
    return load(None, [*SMALL, *sets], {"prep": str(prep)})


@pytest.fixture(scope="module")
def trained(prep: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with checkpoints."""
    out = tmp_path_factory.mktemp("resumed") / "run"
    summary = train(config(prep, "epochs=1"), out)
    assert summary.examples == Prep.open(prep).frames_of(Part.TRAIN)
    return out


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ("optimizer=adamw", "optimizer"),
        ("model=tdnn", "model"),
        ("seed=1", "seed"),
        ("minibatch=128", "minibatch"),
        ("network.hidden=[17]", "network.hidden"),
        ("rate.momentum=0.5", "rate.momentum"),
        ("rate.weight_decay=0.1", "rate.weight_decay"),
        ("strategy.name=averaging", "strategy.name"),
        ("natural_gradient.alpha=1.0", "natural_gradient.alpha"),
        ("recipe.gap=0.5", "recipe.gap"),
    ],
)
def test_what_is_in_the_state_cannot_be_changed(
    change: str, key: str, trained: Path, prep: Path
) -> None:
    with pytest.raises(UserError, match=rf"was trained with {key} = .*; --resume cannot") as caught:
        train(config(prep, "epochs=1", change), trained, resume=True)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "change",
    ["epochs=2", "threads=2", "rate.start=0.2", "timeout_s=5.0", "checkpoint.keep=3",
     "respawn=false", "validation.every=100", "strategy.name=solo"],
)  # fmt: skip
def test_what_is_not_can_be(change: str, trained: Path, prep: Path) -> None:
    check_resumable(RunDirectory(trained), config(prep, "epochs=1", change))


def test_the_command_that_began_a_run_resumes_it(
    prep: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says nothing of what the run has decided by itself."""
    begun = ["strategy.name=averaging", "learners=2"]
    decided = ["strategy.every=0:1024 6:2048", "strategy.precision=int8", "rate.factor=0.5"]
    run = RunDirectory.create(tmp_path / "run", config(prep, *begun, *decided))
    (run.checkpoints / "00000001").mkdir()

    found: list[Config] = []

    def stops(forks: bool, run: RunDirectory, config: Config, *_: Any) -> None:
        found.append(config)
        raise UserError("far enough")

    monkeypatch.setattr(training, "_train_together", stops)
    for now in ([], ["strategy.every=auto"], ["rate.factor=0.25"]):
        with pytest.raises(UserError, match="far enough"):
            train(config(prep, *begun, *now), run.path, resume=True)
    assert [each.rate.factor for each in found] == [0.5, 0.5, 0.25]
    assert [each.strategy for each in found] == [run.read_config().strategy] * 3
    with pytest.raises(UserError, match=r"trained with strategy.every = 0:1024 6:2048; --"):
        train(config(prep, *begun, "strategy.every=512"), run.path, resume=True)


def test_a_run_without_checkpoints_may_change_all(prep: Path, tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run", config(prep))
    check_resumable(run, config(prep, "optimizer=adamw", "seed=3"))


def test_a_finished_run_without_checkpoints_keeps_its_model(
    trained: Path, prep: Path, tmp_path: Path
) -> None:
    """There is nothing to go on from: it would be trained anew."""
    run = RunDirectory(tmp_path / "run")
    shutil.copytree(trained, run.path)
    shutil.rmtree(run.checkpoints)
    kept = (run.config, run.metrics, run.model)
    before = [path.read_bytes() for path in kept]
    for change, match in [
        ("epochs=1", "run is finished, and has no checkpoint .* --init"),
        ("epochs=2", "run is finished, and has no checkpoint .* --init"),
        ("seed=5", "was trained with seed = 0; --resume cannot"),
    ]:
        with pytest.raises(UserError, match=match):
            train(config(prep, change), run.path, resume=True)
    assert [path.read_bytes() for path in kept] == before


@pytest.mark.parametrize("resume", [True, False])
def test_a_run_that_is_being_trained_is_not_resumed(
    resume: bool, trained: Path, prep: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunDirectory(tmp_path / "run")

    def meanwhile(*_: Any) -> None:
        before = run.config.read_bytes(), run.metrics.read_bytes()
        with pytest.raises(UserError, match="run is being trained by another"):
            train(config(prep, "epochs=3", "seed=5"), run.path, resume=True)
        assert (run.config.read_bytes(), run.metrics.read_bytes()) == before
        raise KeyboardInterrupt

    if resume:
        shutil.copytree(trained, run.path)
    monkeypatch.setattr(training, "_train_alone", meanwhile)
    with pytest.raises(KeyboardInterrupt):
        train(config(prep, "epochs=2"), run.path, resume=resume)
    monkeypatch.undo()
    with run.locked():
        pass


def test_a_file_system_without_locks_holds_runs(
    prep: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", refuse)
    run = RunDirectory.create(tmp_path / "run", config(prep))
    with run.locked(), run.locked():
        pass


def test_a_run_that_was_killed_at_its_end_begins_anew(
    trained: Path, prep: Path, tmp_path: Path
) -> None:
    """It has a model, and neither a summary nor a checkpoint."""
    run = RunDirectory(tmp_path / "run")
    shutil.copytree(trained, run.path)
    shutil.rmtree(run.checkpoints)
    run.summary.unlink()
    check_resumable(run, config(prep, "epochs=1"))
    with pytest.raises(UserError, match="was trained with seed = 0"):
        check_resumable(run, config(prep, "seed=5"))


def test_the_last_resumption_alone_is_summed_up(trained: Path, prep: Path) -> None:
    summary = train(config(prep, "epochs=2"), trained, resume=True)
    frames = Prep.open(prep).frames_of(Part.TRAIN)
    assert summary.examples == frames
    assert summary.minibatches.committed == -(-frames // 256)
    assert summary.rounds == 0, "one learner shares nothing, whatever its checkpoint was numbered"


def test_a_resumption_that_starts_slowly_is_summed_up_alone(
    trained: Path, prep: Path, tmp_path: Path
) -> None:
    """Its clock is past all that the run before took."""
    run = RunDirectory(tmp_path / "run")
    shutil.copytree(trained, run.path)
    summary = train(config(prep, "epochs=3"), run.path, resume=True, began=background.now() - 1000)
    assert summary.start_up_s >= 1000 and summary.wall_s < 500
    times = [event["time"] for event in History.read(run.path, "").events]
    assert times == sorted(times) and times[-1] < 500
    live = LiveRun()
    for event in run.read_metrics():
        live.take(event)
    assert live.time < 500


@pytest.mark.parametrize(
    ("change", "match"),
    [("model=cnn", "there is no model 'cnn'"), ("device=cuda", "torch finds no GPU here")],
)
def test_a_refused_run_leaves_nothing_behind(
    change: str, match: str, prep: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(UserError, match=match):
        train(config(prep, change), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("worked", [False, True])
def test_a_run_that_fails_is_removed_unless_it_has_trained(
    worked: bool, prep: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(run: RunDirectory, *_: Any) -> None:
        run.log(0).write_text('{"trained":[[0,1]]}\n' if worked else "")
        run.metrics.write_text("")
        raise UserError("it failed")

    monkeypatch.setattr(training, "_train_alone", fails)
    with pytest.raises(UserError, match="it failed"):
        train(config(prep), tmp_path / "run")
    assert (tmp_path / "run").exists() == worked
    earlier = RunDirectory.create(tmp_path / "earlier", config(prep))
    with pytest.raises(UserError, match="it failed"):
        train(config(prep), earlier.path, resume=True)
    assert earlier.path.exists()


def test_a_refused_resumption_leaves_the_run_as_it_was(
    prep: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the next `--resume` would go on with the settings that were refused."""
    run = RunDirectory(tmp_path / "run")
    settings = ["minibatch=1024", "checkpoint.every=4096"]
    train(config(prep, "epochs=2", *settings), run.path)
    before = {path: path.read_bytes() for path in (run.config, run.metrics)}
    with pytest.raises(UserError, match="give it more epochs"):
        train(config(prep, "epochs=1", *settings), run.path, resume=True)
    assert {path: path.read_bytes() for path in before} == before

    def fails(run: RunDirectory, *_: Any) -> None:
        with run.log(0).open("a") as log:
            log.write('{"trained":[[0,1]]}\n')
        raise UserError("it failed")

    monkeypatch.setattr(training, "_train_alone", fails)
    with pytest.raises(UserError, match="it failed"):
        train(config(prep, "epochs=3", *settings), run.path, resume=True)
    assert run.read_config().epochs == 3


def test_examples_are_counted_by_what_was_committed(prep: Path) -> None:
    """Short minibatches at the ends of epochs included; against a count one by one."""
    opened = Prep.open(prep)
    frames = opened.frames_of(Part.TRAIN)
    settings = config(prep, "minibatch=1000", "epochs=3")
    sizes = [min(1000, frames - first) for first in range(0, frames, 1000)] * 3
    for ranges in ([[0, len(sizes)]], [[3, 40], [41, 60]], [[len(sizes) - 1, len(sizes)]], []):
        wanted = sum(sum(sizes[start:stop]) for start, stop in ranges)
        assert committed_examples(settings, opened, ranges) == wanted


def test_an_outcome_that_was_not_written_is_in_the_journal(tmp_path: Path) -> None:
    journal = FileJournal(tmp_path / JOURNAL)
    journal.append([Command(learner(0), Join(""), 0, "session")])
    journal.close()
    found = read_outcome(tmp_path, 1)
    assert (found["joined"], found["over"], found["failure"]) == (1, False, None)
    (tmp_path / OUTCOME).write_text('{"joined": 7}')
    assert read_outcome(tmp_path, 1) == {"joined": 7}


def test_whether_a_run_has_begun_is_in_the_journal(tmp_path: Path) -> None:
    """Of a coordinator that is writing the next line."""
    assert not has_begun(tmp_path, 1)
    journal = FileJournal(tmp_path / JOURNAL)
    journal.append([Command(learner(0), Join(""), 0, "session")])
    journal.close()
    with (tmp_path / JOURNAL).open("ab") as file:
        file.write(b"half a li")
    before = (tmp_path / JOURNAL).read_bytes()
    assert has_begun(tmp_path, 1) and not has_begun(tmp_path, 2)
    assert (tmp_path / JOURNAL).read_bytes() == before
