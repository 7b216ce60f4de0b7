"""What a new user tries first: help, mistakes, a script of one's own."""

from __future__ import annotations

import io
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from test_commands import QUICK, Run, is_one_line, prep, run

import unisono
from unisono.config import Config, load
from unisono.errors import UserError
from unisono.launch.room import check_memory, warn_of_crowd, warn_of_shared_gpus
from unisono.runs.directory import RunDirectory
from unisono.strategies.registry import find, make, names
from unisono.training import bench
from unisono.training.bench import Bench
from unisono.training.display import Display, EventReaders
from unisono.verbosity import log_to_terminal

__all__ = ["prep", "run"]

OWN_LOOP = """
import sys
import torch
import unisono

x = torch.randn(800, 4, generator=torch.Generator().manual_seed(0))
data = torch.utils.data.TensorDataset(x, (x[:, 0] > 0).long())
loader = torch.utils.data.DataLoader(data, batch_size=4, shuffle=True)
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with unisono.Learner(model, optimizer, {options}) as learner:
    for x, y in learner.draw(loader, epochs={epochs}):
        learner.step(torch.nn.functional.cross_entropy(model(x), y))
        {body}
"""

Script = Callable[..., Path]


@pytest.fixture
def script(tmp_path: Path) -> Script:
    """A user's own loop, with something of its own in it."""

    def write(body: str = "pass", options: str = "", epochs: int = 1) -> Path:
        path = tmp_path / "train.py"
        path.write_text(OWN_LOOP.format(options=options, body=body, epochs=epochs))
        return path

    return write


def _heed_interruptions() -> None:
    """A shell starts commands in the background with SIGINT ignored, and children inherit that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Started:
    """A command as a process of its own, in a group that gets Ctrl-C as one."""

    def __init__(self, *arguments: object, cwd: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=cwd,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            start_new_session=True,
            preexec_fn=_heed_interruptions,
        )

    def interrupt(self) -> None:
        os.killpg(self.process.pid, signal.SIGINT)

    def end(self) -> tuple[int, str, str]:
        out, error = self.process.communicate(timeout=120)
        return self.process.returncode, out, error


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Started]]:
    started: list[Started] = []

    def begin(*arguments: object) -> Started:
        started.append(Started(*arguments, cwd=tmp_path))
        return started[-1]

    yield begin
    for each in started:
        try:
            os.killpg(each.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
        finally:
            each.process.wait()


# Help.


def test_version_and_short_help(run: Run) -> None:
    assert run("--version") == (0, f"unisono {unisono.__version__}\n", "")
    assert "Usage" in run("-h")[1] and run("-h")[0] == 0
    assert "Usage" in run("train", "-h")[1]


def test_help_of_train_shows_defaults_and_names(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    _, text, _ = run("train", "--help")
    for words in (
        "default: (3)",
        "default: (dnn)",
        "default: (solo for 1 learner, else averaging)",
    ):
        assert words in text
    for name in [*names(), "dnn", "tdnn", "lstm", "blstm", "sgd", "ng-sgd", "adamw"]:
        assert re.search(rf"^ +{name} +\S+ \S+", text, re.MULTILINE), name
    assert "docs/" not in text, "a file that an installed package does not have"


@pytest.mark.parametrize("command", [[], ["train"], ["prepare"], ["decode"]])
def test_flags_have_no_value(run: Run, command: list[str]) -> None:
    _, text, _ = run(*command, "--help")
    assert "bool" not in text.lower()


def test_all_keys_are_listed(run: Run) -> None:
    status, text, _ = run("train", "--keys")
    assert status == 0
    listed = {line.split()[0] for line in text.splitlines()[1:] if not line.startswith(" ")}
    whole = Config().model_dump()
    keys = {k for k, v in whole.items() if not isinstance(v, dict) or not v}
    keys |= {f"{k}.{inner}" for k, v in whole.items() if isinstance(v, dict) for inner in v}
    assert listed == keys
    assert re.search(r"^rate\.momentum +0\.9 +\S", text, re.MULTILINE)


# Mistakes.


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["train", "PREP", "--set", "network.hidden=[100000000]"], ["network.hidden", "GiB"]),
        (["train", "PREP", "--learners", "2:4"], ["--learners 2:4", "--cluster"]),
        (["launch", "--learners", "2:4", "SCRIPT"], ["--learners 2:4", "--cluster"]),
        (["launch", "--learners", "99999", "SCRIPT"], ["99,999 learners", "GiB of memory"]),
        (["launch", "--timeout", "0", "SCRIPT"], ["--timeout"]),
        (["launch", "--timeout", "-5", "SCRIPT"], ["--timeout"]),
        (["launch", "--timeout", "nan", "SCRIPT"], ["--timeout"]),
        (["launch", "--threads", "-3", "SCRIPT"], ["--threads"]),
        (["bench", "--json", "NOWHERE/x.json"], ["NOWHERE/x.json", "No such file"]),
        (
            ["prepare", "DATA", "--alignments", "nope", "--lexicon", "F", "--out", "O"],
            ["--alignments", "leave --lexicon out"],
        ),
        (["train", "PREP", "--set", "strategy.every=-3", "--learners", "2"], ["every is -3"]),
    ],
)
def test_mistakes_are_one_line(
    run: Run,
    prep: Path,
    script: Script,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    words: list[str],
) -> None:
    def never(*arguments: object) -> Any:
        raise AssertionError("nothing is to be timed before the input is checked")

    monkeypatch.setattr(Bench, "rows", never)
    monkeypatch.chdir(tmp_path)
    places = {"PREP": str(prep), "SCRIPT": str(script())}
    arguments = [places.get(each, each) for each in arguments]
    status, _, error = run(*arguments, *(["--out", "run"] if arguments[0] == "train" else []))
    assert status == 2
    assert is_one_line(error, *words), error


@pytest.mark.parametrize("name", names())
def test_numbers_too_small_are_refused_by_every_strategy(name: str) -> None:
    kind = find(name)
    counts = [key for key in ("every", "push_every", "shards") if hasattr(kind, key)]
    for key in counts:
        for value in (-3,) if key == "push_every" else (0, -3):  # 0: the server chooses
            with pytest.raises(UserError, match=f"{key} is {value}") as caught:
                make(name, {key: value})
            assert "\n" not in str(caught.value)
    assert counts or name in ("solo", "allreduce", "delay-by-one")


def test_more_learners_than_memory_holds_are_refused(
    run: Run, prep: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("unisono.launch.room.memory", lambda: (2**30, 2**30))
    out = tmp_path / "run"
    status, _, error = run("train", prep, "--out", out, "--learners", "20", *QUICK)
    assert status == 2
    assert is_one_line(error, "20 learners need at least 2 GiB of memory", "has 1"), error
    assert not out.exists()
    check_memory(10)


def test_more_learners_than_cores_are_told(capfd: pytest.CaptureFixture[str]) -> None:
    log_to_terminal()
    warn_of_crowd(1)
    assert capfd.readouterr().err == ""
    warn_of_crowd(500)
    assert is_one_line(capfd.readouterr().err, "500 learners on", "memory")


def test_learners_that_share_a_gpu_are_told(capfd: pytest.CaptureFixture[str]) -> None:
    log_to_terminal()
    warn_of_shared_gpus(2, 2)
    assert capfd.readouterr().err == ""
    warn_of_shared_gpus(8, 1)
    assert is_one_line(capfd.readouterr().err, "8 learners on 1 GPU", "take turns")


def test_one_turn_has_no_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    def measured(config: Config, names: list[str], *how: Any) -> dict[str, list[dict[str, Any]]]:
        one = {"steps": 10.0, "slowest": 1.0, "rounds": 1.0, "bytes": 0.0, "ended": ""}
        return {name: [one] * how[3] for name in names}

    monkeypatch.setattr(bench, "measure", measured)
    for turns, found in ((1, False), (2, True)):
        timed = Bench(learners=1, slow=1.0, seconds=1.0, turns=turns, json=None, say=print)
        lines = timed.run()
        assert lines[0].startswith("1 learner, ")
        assert all((".." in line) is found for line in lines[2:])


# Scripts of one's own.


def test_an_error_of_the_user_is_one_line_under_plain_python(
    script: Script, start: Callable[..., Started]
) -> None:
    status, _, error = start(script("learner.every(examples=0)")).end()
    assert status == 1
    lines = [line for line in error.splitlines() if not line.startswith("strategy ")]
    assert lines == ["unisono: examples is 0: it must be at least 1"]


def test_a_bug_keeps_its_traceback_under_plain_python(
    script: Script, start: Callable[..., Started]
) -> None:
    status, _, error = start(script("1 / 0")).end()
    assert status == 1
    assert "Traceback" in error and error.endswith("ZeroDivisionError: division by zero\n")
    assert "[learner" not in error


@pytest.mark.long
def test_the_same_error_is_told_once_a_run(script: Script, start: Callable[..., Started]) -> None:
    path = script("learner.every(examples=0)", "'averaging'")
    status, _, error = start("-m", "unisono", "launch", "--learners", 3, path).end()
    assert status == 2
    assert error.count("it must be at least 1") == 1
    assert error.count("stopped, because") <= 1
    assert "Traceback" not in error


@pytest.mark.long
def test_a_traceback_says_which_learner_it_is_of(
    script: Script, start: Callable[..., Started]
) -> None:
    path = script("assert learner.number != 1, 'here it is'", "'averaging'")
    status, _, error = start("-m", "unisono", "launch", "--learners", 2, path).end()
    assert status == 2
    assert "[learner 1] AssertionError: here it is\n" in error
    assert "[learner 0]" not in error
    assert "unisono: learner 1 failed" in error


@pytest.mark.long
def test_a_script_without_a_learner_is_refused(
    tmp_path: Path, start: Callable[..., Started]
) -> None:
    (tmp_path / "nothing.py").write_text("print('hello')\n")
    status, out, error = start("-m", "unisono", "launch", "nothing.py").end()
    assert status == 2 and out == "hello\nhello\n"
    assert is_one_line(error, "nothing.py", "no unisono.Learner", "2 copies"), error


@pytest.mark.long
def test_a_module_and_its_arguments(tmp_path: Path, start: Callable[..., Started]) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").touch()
    (tmp_path / "package" / "train.py").write_text(
        "import sys\nprint(__name__, __package__, sys.argv[1:])\n"
        + OWN_LOOP.format(options="'averaging'", body="pass", epochs=1)
    )
    command = ["-m", "unisono", "launch", "-m", "package.train", "--learners", "7", "-m", "x"]
    status, out, error = start(*command).end()
    assert status == 0, error
    assert out == "__main__ package ['--learners', '7', '-m', 'x']\n" * 2
    status, _, error = start("-m", "unisono", "launch", "-m", "package.none").end()
    assert status == 2
    assert error.splitlines()[0] == "unisono: there is no module package.none"


@pytest.mark.long
def test_one_learner_says_how_the_strategy_works(
    script: Script, start: Callable[..., Started]
) -> None:
    path = script(options="unisono.Averaging(every=100)")
    _, _, error = start("-m", "unisono", "launch", "--learners", 2, path).end()
    said = [line for line in error.splitlines() if re.match(r"(strategy|shares|waits) ", line)]
    assert [line.split()[0] for line in said] == ["strategy", "shares", "waits"]
    assert said[0].startswith("strategy  averaging (every=100, ")
    assert "<" not in said[0] and "Averaging(" not in said[0]


@pytest.mark.long
@pytest.mark.parametrize("launched", [False, True])
def test_events_of_a_script_are_in_its_metrics(
    script: Script, start: Callable[..., Started], tmp_path: Path, launched: bool
) -> None:
    strategy = "unisono.Averaging(every=100)" if launched else "None"
    path = script(
        "learner.every(examples=400) and learner.event('checked', right=0.5, none=float('nan'))",
        f"{strategy}, checkpoints='kept'",
    )
    command = ["-m", "unisono", "launch", "--learners", 2, path] if launched else [path]
    status, _, error = start(*command).end()
    assert status == 0, error
    events = RunDirectory(tmp_path / "kept").read_metrics()
    checked = [event for event in events if event["event"] == "checked"]
    assert [event["right"] for event in checked] == [0.5, 0.5]
    assert checked[0]["none"] is None
    joined = [event["learner"] for event in events if event["event"] == "joined"]
    assert sorted(joined) == ([0, 1] if launched else [0])


# The display.


class Terminal(io.StringIO):
    """Takes colours and bars."""

    def isatty(self) -> bool:
        return True


def events() -> list[dict[str, Any]]:
    train = {"event": "train", "rate": 1000.0}
    score = {"logprob": -1.5, "accuracy": 0.5, "train_logprob": -1.25, "train_accuracy": 0.75}
    return [
        {"event": "joined", "learner": 0, "time": 0.0},
        {**train, "learner": 0, "time": 1.0, "progress": 0.1},
        {**train, "learner": 1, "time": 62.0, "progress": 0.25},
        {"event": "validation", "learner": 0, "time": 63.0, "progress": 0.3, **score},
        {"event": "lost", "learner": 1, "time": 64.0},
        {**train, "learner": 0, "time": 200.0, "progress": 0.5},
    ]


def test_lines_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    out = io.StringIO()
    with Display(out, prints_scores=True) as display:
        for event in events():
            display(event)
    assert capsys.readouterr().out.startswith(" 30.0%  held out: log-prob -1.5000")
    assert out.getvalue().splitlines() == [
        " 25.0%  2,000 examples/s, 2 learners",
        " 50.0%  1,000 examples/s, 1 learner",
    ]


def test_a_late_validation_does_not_follow_a_newer_one(capsys: pytest.CaptureFixture[str]) -> None:
    with Display(io.StringIO(), prints_scores=True) as display:
        for progress in (0.5, 1.0, 0.9):
            score = {"logprob": -1.5, "accuracy": 0.5, "progress": progress}
            display({"event": "validation", "learner": 0, "time": 1.0, **score})
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["50.0%", "100.0%"]


def test_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    out = Terminal()
    with Display(out, prints_scores=True) as display:
        for event in events():
            display(event)
        display.say("learner 1 was lost")
        shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", out.getvalue())
    assert "2,000 examples/s 2 learners left" in shown
    assert "1,000 examples/s 1 learner " in shown
    assert "held out: log-prob -1.5000, accuracy 50.00%" in shown
    assert "learner 1 was lost" in shown


def test_events_are_read_as_they_come(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text("of an earlier run\n")
    seen: list[Any] = []
    tail = EventReaders(path, seen.append)
    tail()
    with path.open("a") as file:
        file.write(
            '{"time": 1, "learner": 0, "event": "train"}\n{"time": 2, "learner": 0, "event": "va'
        )
    tail()
    assert [event["event"] for event in seen] == ["train"]
    with path.open("a") as file:
        file.write('lidation"}\nbroken\n')
    tail()
    tail()
    assert [event["event"] for event in seen] == ["train", "validation"]


def test_the_start_of_a_run_is_a_table(run: Run, prep: Path, tmp_path: Path) -> None:
    status, text, _ = run("train", prep, "--out", tmp_path / "run", *QUICK)
    assert status == 0
    labels = {line.split()[0] for line in text.splitlines() if line}
    assert {"strategy", "shares", "waits", "schedule", "model", "optimizer", "data"} <= labels
    assert "Solo(" not in text and "1 epochs" not in text and "1 epoch" in text
    assert load(tmp_path / "run" / "config.toml", [], {}).epochs == 1
