"""What cannot be printed ends nothing."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TextIO

import pytest

from unisono.cli.main import main
from unisono.data import synthesise
from unisono.output import go_on_without_output, tell


def full() -> TextIO:
    return open("/dev/full", "w")


def unread() -> TextIO:
    reader, writer = os.pipe()
    os.close(reader)
    return os.fdopen(writer, "w")


def status_of(monkeypatch: pytest.MonkeyPatch, *words: object) -> object:
    monkeypatch.setattr(sys, "argv", ["unisono", *map(str, words)])
    with pytest.raises(SystemExit) as end:
        main()
    return end.value.code


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
@pytest.mark.parametrize("open_", [full, unread])
def test_prints_go_nowhere(stream: str, open_: object, monkeypatch: pytest.MonkeyPatch) -> None:
    assert callable(open_)
    said: list[str] = []
    monkeypatch.setattr(sys, stream, open_())
    monkeypatch.setattr(sys, "stdout" if stream == "stderr" else "stderr", full())
    go_on_without_output(said.append)
    for _ in range(3):
        print("a line", file=getattr(sys, stream), flush=True)
    tell("a line", "another one")
    line = "standard output cannot be written: No space left on device"
    assert said == ([line] if stream == "stdout" and open_ is full else [])


def test_lines_of_a_learner_go_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", full())
    tell("a line")


@pytest.mark.parametrize(
    ("open_", "words", "status", "lines"),
    [
        (full, ["train", "--keys"], 2, 1),
        (full, ["--version"], 2, 1),
        (unread, ["train", "--keys"], 0, 0),
        (unread, ["--help"], 0, 0),
    ],
)
def test_short_commands(
    open_: object,
    words: list[str],
    status: int,
    lines: int,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert callable(open_)
    monkeypatch.setattr(sys, "stdout", open_())
    assert status_of(monkeypatch, *words) == status
    error = capfd.readouterr().err
    assert error.count("\n") == lines, error


def test_training_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    synthesise(
        tmp_path / "prep",
        speakers=6,
        utterances_per_speaker=2,
        frames_per_utterance=50,
        states=4,
        dimension=4,
        seed=0,
        noise=1.0,
    )
    monkeypatch.setattr(sys, "stdout", full())
    sets = ["--set", "minibatch=64", "--set", "network.hidden=[8]", "--set", "epochs=1"]
    words = ["train", tmp_path / "prep", "--out", tmp_path / "run", *sets]
    assert status_of(monkeypatch, *words) == 0
    assert (tmp_path / "run" / "model.safetensors").exists()
    assert capfd.readouterr().err.count("standard output cannot be written") == 1
