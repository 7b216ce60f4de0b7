"""The demo: what it says first, and all of it."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from unisono.cli.demo import _program
from unisono.errors import UserError
from unisono.speech.synthesis import tts
from unisono.training.demo import demo


def test_without_espeak_it_is_one_line_and_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tts, "find_spec", lambda _: None)
    with pytest.raises(UserError, match=r"pip install 'unisono\[demo\]'"):
        demo(tmp_path / "demo", "unisono", print, print)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(UserError, match="exists already"):
        demo(tmp_path, "unisono", print, print)


def test_the_program_is_named_as_a_shell_finds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "my env" / "unisono"
    own.parent.mkdir()
    own.write_text("#!/bin/sh\n")
    own.chmod(0o755)
    monkeypatch.setattr(sys, "argv", [str(own)])
    assert _program() == shlex.quote(str(own))
    monkeypatch.setenv("PATH", f"{own.parent}{os.pathsep}{os.environ['PATH']}")
    assert shutil.which("unisono") == str(own) and _program() == "unisono"
    monkeypatch.setattr(sys, "argv", ["main.py"])
    assert _program() == f"{sys.executable} -m unisono"


@pytest.mark.long
@pytest.mark.timeout(2400)
def test_the_whole_demo_and_the_commands_that_it_names(tmp_path: Path) -> None:
    if find_spec("espeakng_loader") is None:
        pytest.skip("the demo extra is not installed")

    def run(command: list[str]) -> list[str]:
        done = subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, timeout=1200, check=True
        )
        assert done.stderr == ""
        return done.stdout.splitlines()

    lines = run([sys.executable, "-m", "unisono", "demo", "--out", "made"])
    stages = [line.split()[0] for line in lines if line[:3] in ("1/4", "2/4", "3/4", "4/4")]
    assert stages == ["1/4", "2/4", "3/4", "4/4"]
    assert "word errors, test" in (tmp_path / "made" / "run" / "report.html").read_text()
    score = json.loads((tmp_path / "made" / "run" / "test" / "score.json").read_text())
    assert 0.02 < score["wer"] < 0.30 and score["words"] > 500
    commands = [line for line in lines[lines.index("try next:") + 1 :] if line]
    assert len(commands) == 3
    for command in commands:
        run(shlex.split(command))
    assert (tmp_path / "report.html").is_file()
