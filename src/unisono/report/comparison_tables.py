"""The tables of a comparison's report: a row a strategy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape

from unisono.report.axes import duration, short, signed
from unisono.report.charts import colour_of
from unisono.report.choice import Cell, Row
from unisono.report.comparison import Comparison, time_of
from unisono.report.outcome import RunOutcome
from unisono.report.runs_table import known, logprob, percent, size
from unisono.report.statistics import Estimate

Heads = list[tuple[str, str, str]]
Cells = list[tuple[str, str]]


def result_table(comparison: Comparison) -> str:
    """Returns the table of results."""
    heads = _heads(comparison)
    head = "".join(f'<th class="{k}">{name}<small>{more}</small></th>' for k, name, more in heads)
    rows = [
        _first(i, row) + _result(comparison, row, len(heads))
        for i, row in enumerate(comparison.rows)
    ]
    return _table(head, rows)


def _heads(comparison: Comparison) -> Heads:
    heads: Heads = [("text", "strategy", "")]
    for target in next((row.targets for row in comparison.rows if row.targets), ()):
        heads += [
            ("", "time to", f"log-prob {logprob(target.target)}"),
            ("", "speed-up", f"solo less {target.margin:g}"),
        ]
    if comparison.ceiling is not None:
        heads.append(("", "of ceiling", f"{comparison.ceiling.ratio:.2f}"))
    heads += [
        ("", "start-up", ""),
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
    ]
    if any(row.word_errors for row in comparison.rows):
        heads.append(("", "word errors", "test"))
    return heads


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


def _result(comparison: Comparison, row: Row, count: int) -> Cells:
    if row.chosen is None or row.pace is None:
        why = f"{row.ended.value}: {row.reason}"
        rest: Cells = [("", "")] * (count - 2)
        return [("text why bad", escape(why)), *rest]
    pace, edge = row.pace, " (edge)" if row.at_edge else ""
    multiple = f"<br><small>\N{MULTIPLICATION SIGN} {row.chosen.rate:g}{edge}</small>"
    cells: Cells = []
    for target in row.targets:
        never = target.time is None
        cells.append(("bad" if never else "first", signed(escape(time_of(target)))))
        cells.append(("first", _estimate(target.speed_up, _times)))
    if comparison.ceiling is not None:
        cells.append(("", known(comparison.share_of_ceiling(row), percent)))
    cells += [
        ("", duration(row.start_up_s)),
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
    if len(cells) < count - 1:
        cells.append(("", _estimate(row.word_errors, percent)))
    return cells


def _rate(cell: Cell, chosen: bool) -> tuple[str, str]:
    mean = cell.choice_logprob
    if mean is not None:
        return ("best" if chosen else "", logprob(mean))
    bad = [result for result in cell.results if result.ended is not RunOutcome.FINISHED]
    many = f" {len(bad)} of {len(cell.results)}" if len(cell.results) > 1 else ""
    tip = escape(bad[0].reason, quote=True)
    return "bad", f'<span title="{tip}">{bad[0].ended.value}{many}</span>'


def _estimate(estimate: Estimate | None, write: Callable[[float], str] = logprob) -> str:
    if estimate is None:
        return "\N{EN DASH}"
    if estimate.low is None or estimate.high is None:
        return write(estimate.mean)
    between = f"{write(estimate.low)} to {write(estimate.high)}"
    return f"{write(estimate.mean)}<br><small>{between}</small>"


def _times(value: float) -> str:
    return f"{value:.2f}\N{MULTIPLICATION SIGN}"


def _table(head: str, rows: Sequence[Cells]) -> str:
    body = "\n".join(
        "<tr>" + "".join(f'<td class="{kind}">{cell}</td>' for kind, cell in row) + "</tr>"
        for row in rows
    )
    return f'<div class="table"><table><tr>{head}</tr>\n{body}</table></div>'
