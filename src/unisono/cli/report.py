"""`unisono report`: the curves of runs as one HTML file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from unisono.report.report import write_report
from unisono.runs.directory import RunDirectory


def report(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Run directories, finished or not.")
    ],
) -> None:
    """Write report.html: into the run, or into the current folder to compare several runs."""
    out = RunDirectory(runs[0]).report if len(runs) == 1 else Path("report.html")
    typer.echo(f"wrote {write_report(runs, out)}")
