"""Commands that are ended from outside: Ctrl-C, and schedulers."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from test_commands import QUICK, is_one_line, prep
from test_first_contact import Script, Started, script, start

__all__ = ["prep", "script", "start"]


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def is_there(group: int) -> bool:
    """Whether a group has processes, those included that nobody has waited for yet."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize("library", ["numpy", "libtorch_cpu"])
@pytest.mark.parametrize("command", [["doctor"], ["train", "PREP"]])
def test_an_interruption_at_the_start_is_one_line(
    start: Callable[..., Started], prep: Path, command: list[str], library: str
) -> None:
    """While it imports what it needs, which takes seconds."""
    begun = start("-m", "unisono", *[str(prep) if each == "PREP" else each for each in command])
    maps = Path(f"/proc/{begun.process.pid}/maps")
    wait_until(lambda: library in maps.read_text())
    begun.interrupt()
    status, _, error = begun.end()
    assert status == 130
    assert is_one_line(error, "interrupted"), error


@pytest.mark.parametrize("learners", [1, pytest.param(2, marks=pytest.mark.long)])
def test_an_interrupted_run_says_how_to_go_on(
    start: Callable[..., Started], prep: Path, tmp_path: Path, learners: int
) -> None:
    quick = [*QUICK, "--set", "epochs=2000", "--set", "checkpoint.every=2000"]
    quick += ["--set", "validation.enabled=false", "--learners", str(learners)]
    begun = start("-m", "unisono", "train", prep, "--out", "run", *quick)
    wait_until(lambda: any(p.name.isdigit() for p in tmp_path.glob("run/checkpoints/*")))
    begun.interrupt()
    status, _, error = begun.end()
    assert status == 130
    assert is_one_line(error, "interrupted", "unisono train --resume --out run"), error


@pytest.mark.long
def test_an_interrupted_script_says_how_to_go_on(
    start: Callable[..., Started], script: Script, tmp_path: Path
) -> None:
    path = script("open('running', 'w').close()", "'averaging', quiet=True", epochs=10_000)
    begun = start("-m", "unisono", "launch", path)
    wait_until((tmp_path / "running").exists)
    begun.interrupt()
    status, _, error = begun.end()
    assert status == 130
    assert is_one_line(error, "interrupted", "resume=True"), error


@pytest.mark.parametrize(
    ("command", "hint"),
    [
        (["train", "PREP", "--learners", "2"], "unisono train --resume --out run"),
        pytest.param(["train", "PREP"], "unisono train --resume --out run", marks=pytest.mark.long),
        pytest.param(["launch", "SCRIPT"], "resume=True", marks=pytest.mark.long),
    ],
)
def test_a_scheduler_that_ends_a_command_is_told_how_to_go_on(
    start: Callable[..., Started],
    script: Script,
    prep: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: list[str],
    hint: str,
) -> None:
    """By SIGTERM; nothing is left behind, neither processes nor files."""
    own = script("open('running', 'w').close()", "'averaging', quiet=True", epochs=10_000)
    words = [{"PREP": prep, "SCRIPT": own}.get(word, word) for word in command]
    if command[0] == "train":
        words += [*QUICK, "--set", "epochs=2000", "--set", "checkpoint.every=2000"]
        words += ["--set", "validation.enabled=false", "--out", "run"]
    with tempfile.TemporaryDirectory() as folder:
        monkeypatch.setenv("TMPDIR", folder)
        begun = start("-m", "unisono", *words)
        signs = ("running", "run/checkpoints/*[0-9]")
        wait_until(lambda: any(found for sign in signs for found in tmp_path.glob(sign)))
        begun.process.terminate()
        status, _, error = begun.end()
        assert status == 130
        assert is_one_line(error, "interrupted", hint), error
        assert not [*Path(folder).glob("unisono-*"), *tmp_path.glob("run/control.json")]
    with pytest.raises(ProcessLookupError):
        os.killpg(begun.process.pid, 0)


@pytest.mark.long
def test_a_bench_that_is_ended_leaves_nothing_behind(
    start: Callable[..., Started], monkeypatch: pytest.MonkeyPatch
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        monkeypatch.setenv("TMPDIR", folder)
        begun = start("-m", "unisono", "bench", "--learners", 2)
        wait_until(lambda: any(Path(folder).glob("unisono-bench-*/store")))
        begun.process.terminate()
        status, _, error = begun.end()
        assert status == 130
        assert is_one_line(error, "interrupted"), error
        assert not [*Path(folder).iterdir()]
    wait_until(lambda: not is_there(begun.process.pid))
