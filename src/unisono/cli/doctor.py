"""`unisono doctor`: what the machines have, and what to change."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from unisono.errors import UserError
from unisono.launch.doctor import Finding, Severity, examine_here
from unisono.launch.doctor_cluster import examine_cluster
from unisono.training.display import show

_COLOURS = {Severity.FINE: "green", Severity.ADVICE: "yellow", Severity.FAULT: "red"}


def doctor(
    cluster: Annotated[
        str | None,
        typer.Option(help="A Ray cluster: auto or ADDRESS.", show_default="this machine"),
    ] = None,
) -> None:
    """Say what the machines have, how fast their links are, and what to change.

    Ends with 0 unless something prevents training.
    """
    findings = examine_cluster(cluster) if cluster else examine_here()
    show(_table(findings))
    faults = [f for f in findings if f.mark is Severity.FAULT]
    if faults:
        raise UserError(f"{faults[0].where}: {faults[0].what} {faults[0].mark.value}")


def _table(findings: list[Finding]) -> Table:
    table = Table("where", "what", "found", "", "what to do", box=None, pad_edge=False)
    last = ""
    for finding in findings:
        mark = f"[{_COLOURS[finding.mark]}]{finding.mark.value}[/]"
        where = "" if finding.where == last else finding.where
        what, found, advice = map(Text, (finding.what, finding.found, finding.advice))
        table.add_row(where, what, found, mark, advice)
        last = finding.where
    return table
