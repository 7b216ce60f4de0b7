"""`unisono doctor`: what the machines have, and what to change."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from unisono.errors import UserError
from unisono.launch.doctor import Finding, Severity, examine_here
from unisono.launch.doctor_cluster import examine_cluster

_WIDE = 160
"""Columns where the output is no terminal: lines are not folded."""
_COLOURS = {Severity.FINE: "green", Severity.ADVICE: "yellow", Severity.FAULT: "red"}


def doctor(
    cluster: Annotated[
        str | None, typer.Option(help="A Ray cluster: auto or ADDRESS.  [default: this machine]")
    ] = None,
) -> None:
    """Say what the machines have, how fast their links are, and what to change.

    Ends with 0 unless something prevents training.
    """
    findings = examine_cluster(cluster) if cluster else examine_here()
    console = Console()
    if not console.is_terminal:
        console = Console(width=_WIDE)
    console.print(_table(findings))
    faults = [f for f in findings if f.mark is Severity.FAULT]
    if faults:
        raise UserError(f"{faults[0].where}: {faults[0].what} {faults[0].mark.value}")


def _table(findings: list[Finding]) -> Table:
    table = Table("where", "what", "found", "", "what to do", box=None, pad_edge=False)
    last = ""
    for finding in findings:
        mark = f"[{_COLOURS[finding.mark]}]{finding.mark.value}[/]"
        where = "" if finding.where == last else finding.where
        table.add_row(where, finding.what, finding.found, mark, finding.advice)
        last = finding.where
    return table
