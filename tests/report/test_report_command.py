from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from unisono.cli.report import report
from unisono.errors import UserError

APP = typer.Typer()
APP.command()(report)


def test_one_run_gets_its_report_inside(make_run: Any) -> None:
    run = make_run()
    result = CliRunner().invoke(APP, [str(run.path)])
    assert result.exit_code == 0
    assert result.output.split() == ["wrote", str(run.report)]
    assert run.report.is_file()


def test_several_runs_are_compared_in_the_current_folder(
    make_run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [str(make_run(name).path) for name in ("a", "b")]
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(APP, runs)
    assert result.exit_code == 0
    assert "2 runs compared" in (tmp_path / "report.html").read_text()
    assert not (tmp_path / "a" / "report.html").exists()


def test_a_path_that_is_no_run_raises_for_the_user(tmp_path: Path) -> None:
    result = CliRunner().invoke(APP, [str(tmp_path)])
    assert isinstance(result.exception, UserError)
    assert list(tmp_path.iterdir()) == []


def test_help_names_the_argument() -> None:
    result = CliRunner().invoke(APP, ["--help"])
    assert result.exit_code == 0
    assert "RUN..." in result.output
