"""The tables of a comparison's report: a row a strategy."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from unisono.report.axes import duration, short, signed
from unisono.report.charts import colour_of
from unisono.report.choice import Cell, Row
from unisono.report.comparison import Comparison, interval
from unisono.report.outcome import RunOutcome
from unisono.report.runs_table import known, logprob, percent, size
from unisono.report.statistics import Estimate

_HEADS = (
    ("text", "strategy", ""),
    ("", "learners", ""),
    ("", "rate", "chosen"),
    ("", "log-prob", "reported"),
    ("", "minus solo", ""),
    ("", "log-prob", "training"),
    ("", "minus solo", "training"),
    ("", "accuracy", "reported"),
    ("", "time", ""),
    ("", "examples/s", ""),
    ("", "waiting", ""),
    ("", "sent", ""),
    ("", "staleness", "mean"),
)

Cells = list[tuple[str, str]]


def result_table(comparison: Comparison) -> str:
    """Returns the table of results."""
    head = "".join(f'<th class="{k}">{name}<small>{more}</small></th>' for k, name, more in _HEADS)
    rows = [_first(i, row) + _result(row) for i, row in enumerate(comparison.rows)]
    return _table(head, rows)


def grid_table(comparison: Comparison) -> str:
    """Returns the table of all rates: what each was chosen by, or how it ended."""
    head = '<th class="text">strategy</th>'
    head += "".join(f"<th>rate \N{MULTIPLICATION SIGN} {rate:g}</th>" for rate in comparison.rates)
    rows = [
        _first(i, row) + [_rate(cell, cell is row.chosen) for cell in row.grid]
        for i, row in enumerate(comparison.rows)
    ]
    return _table(head, rows)


def _first(colour: int, row: Row) -> Cells:
    swatch = f'<span class="swatch" style="{colour_of(colour)}"></span>'
    return [("text why", swatch + escape(row.name).replace(":", ":<wbr>"))]


def _result(row: Row) -> Cells:
    if row.chosen is None or row.pace is None:
        why = f"{row.ended.value}: {row.reason}"
        rest: Cells = [("", "")] * (len(_HEADS) - 3)
        return [("", str(row.learners)), ("text why bad", escape(why)), *rest]
    pace, edge = row.pace, " (edge)" if row.at_edge else ""
    multiple = f"<br><small>\N{MULTIPLICATION SIGN} {row.chosen.rate:g}{edge}</small>"
    return [
        ("", str(row.learners)),
        ("", f"{row.chosen.learning_rate:.3g}{multiple}"),
        ("", _estimate(row.logprob)),
        ("", _estimate(row.minus_solo)),
        ("", _estimate(row.train_logprob)),
        ("", _estimate(row.train_minus_solo)),
        ("", "" if row.accuracy is None else percent(row.accuracy.mean)),
        ("", duration(pace.wall_s)),
        ("", short(pace.examples_per_s)),
        ("", percent(pace.waiting)),
        ("", size(pace.bytes_sent)),
        ("", known(pace.staleness, lambda value: f"{value:.1f}")),
    ]


def _rate(cell: Cell, chosen: bool) -> tuple[str, str]:
    mean = cell.choice_logprob
    if mean is not None:
        return ("best" if chosen else "", logprob(mean))
    bad = [result for result in cell.results if result.ended is not RunOutcome.FINISHED]
    many = f" {len(bad)} of {len(cell.results)}" if len(cell.results) > 1 else ""
    tip = escape(bad[0].reason, quote=True)
    return "bad", f'<span title="{tip}">{bad[0].ended.value}{many}</span>'


def _estimate(estimate: Estimate | None) -> str:
    if estimate is None:
        return "\N{EN DASH}"
    return f"{logprob(estimate.mean)}<br><small>{signed(interval(estimate))}</small>"


def _table(head: str, rows: Sequence[Cells]) -> str:
    body = "\n".join(
        "<tr>" + "".join(f'<td class="{kind}">{cell}</td>' for kind, cell in row) + "</tr>"
        for row in rows
    )
    return f'<div class="table"><table><tr>{head}</tr>\n{body}</table></div>'
