"""`unisono doctor`: what the machines have, and what to change."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from unisono.training.doctor import Finding, Mark, examine_here

_COLOURS = {Mark.FINE: "green", Mark.ADVICE: "yellow", Mark.FAULT: "red"}


def doctor(
    cluster: Annotated[
        str | None, typer.Option(help="A Ray cluster: auto or ADDRESS.  [default: this machine]")
    ] = None,
) -> None:
    """Say what the machines have, how fast their links are, and what to change.

    Ends with 0 unless something prevents training.
    """
    findings = examine_here()
    console = Console(soft_wrap=True) if not Console().is_terminal else Console()
    console.print(_table(findings))
    faults = [f for f in findings if f.mark is Mark.FAULT]
    if faults:
        raise typer.Exit(1)


def _table(findings: list[Finding]) -> Table:
    table = Table("where", "what", "found", "", "what to do", box=None, pad_edge=False)
    last = ""
    for finding in findings:
        mark = f"[{_COLOURS[finding.mark]}]{finding.mark.value}[/]"
        where = "" if finding.where == last else finding.where
        table.add_row(where, finding.what, finding.found, mark, finding.advice)
        last = finding.where
    return table
