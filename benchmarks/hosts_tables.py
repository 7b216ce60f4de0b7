"""Tables and curves of ``benchmarks/hosts.py``."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

from hosts_contenders import (
    BFLOAT16,
    CONTENDERS,
    FLOAT32,
    HOSTS,
    MEGABITS,
    MINIBATCH,
    PACED,
    STEPS,
    TRAINED,
    Timing,
)

from unisono.report.axes import Axis, Quantity, make_axis
from unisono.report.charts import Line, Look, colour_of, line_chart
from unisono.report.page import charts, legend, page

TITLES = {
    "fast": "cables of 100 Mbit/s",
    "slow": "cables of 50 Mbit/s",
    "bits": "cables of 50 Mbit/s, averaging in fewer bits",
    "far": "cables of 100 Mbit/s, 20 ms there and back",
}
GOAL, NEAR = 0.9, 0.05


def speed_table(part: str, timings: Sequence[Timing], parameters: int) -> list[str]:
    """The lines of one part."""
    alone = statistics.median(t.steps / t.ratio for t in timings)
    lines = [
        f"{TITLES[part]}; four that share nothing: {alone:.0f} steps/s",
        f"{'':16} {'every':>6} {'':8} {'ratio':>6} {'least..greatest':>16} {'limit':>6} "
        f"{'examples a round':>16} {'MB a round':>10} {'MB/s':>6}",
    ]
    for way in CONTENDERS[part]:
        mine = [t for t in timings if t.way == way.key]
        if mine:
            ratios = [t.ratio for t in mine]
            spread = f"{min(ratios):.3f}..{max(ratios):.3f}" if len(ratios) > 1 else ""
            rate = alone * MINIBATCH / HOSTS
            rounds = statistics.median(t.rounds for t in mine)
            sent = statistics.median(t.bytes for t in mine) / 1e6
            examples = statistics.median(t.steps for t in mine) * MINIBATCH / HOSTS
            lines.append(
                f"{way.name:16} {way.every:6} {way.precision:8} {statistics.median(ratios):6.3f} "
                f"{spread:>16} "
                f"{way.limit(parameters, rate, MEGABITS[part]):6.3f} "
                f"{examples / rounds:16.0f} {sent / rounds:10.2f} {sent:6.2f}"
            )
    return lines


def training_table(results: dict[str, dict[str, Any]], ratios: dict[str, float]) -> list[str]:
    """Log-prob of whole trainings, beside the ratio at 100 Mbit/s."""
    solo = results["solo"]["logprob"]
    lines = [
        f"{'':16} {'every':>6} {'':8} {'held out':>9} {'loss/solo':>9} {'ratio':>6} {'rounds':>7} "
        f"{'wall s':>7}",
        f"{'solo':16} {'':6} {'':8} {solo:9.4f} {0.0:9.4f} {'':6} {'':7} "
        f"{results['solo']['wall_s']:7.1f}",
    ]
    for way in TRAINED:
        if (result := results.get(way.key)) is None:
            continue
        loss = solo - result["logprob"]
        ratio = ratios.get(way.key)
        reached = ratio is not None and ratio >= GOAL and loss <= NEAR
        lines.append(
            f"{way.name:16} {way.every:6} {way.precision:8} {result['logprob']:9.4f} {loss:9.4f} "
            f"{'' if ratio is None else f'{ratio:.3f}':>6} {result['rounds']:7} "
            f"{result['wall_s']:7.1f}{'  *' if reached else ''}"
        )
    return [*lines, f"* at least {GOAL} of independent, and within {NEAR} of solo"]


def curves(results: dict[str, dict[str, Any]], ratios: dict[str, float]) -> str:
    """Ratio and log-prob over the pace, as a page."""
    logprobs = {key: result["logprob"] for key, result in results.items() if key != "solo"}
    found = [
        _chart("Steps a second, four that share nothing = 1", "ratio", ratios, GOAL),
        _chart("AN4 after 3 epochs", "held-out log-prob", logprobs, results["solo"]["logprob"]),
    ]
    entries = [("dashed", colour_of(None), "goal; solo")]
    for colour, name in enumerate((*PACED, *STEPS)):
        entries.append(("", colour_of(colour), name))
    entries.append(("dashed", colour_of(None), "in bfloat16: faint"))
    return page("Four hosts, cables of 100 Mbit/s", [legend(entries), charts(found)])


def _chart(title: str, quantity: str, values: dict[str, float], mark: float) -> str:
    paces = sorted({way.every for way in CONTENDERS["fast"]})
    x = Axis(
        "examples of a learner a round",
        math.log2(paces[0]),
        math.log2(paces[-1]),
        [(math.log2(pace), str(pace)) for pace in paces],
    )
    y = make_axis(quantity, [*values.values(), mark], Quantity.NUMBER)
    lines = [Line("mark", [[(x.low, mark), (x.high, mark)]], None, Look.DASHED)]
    for colour, name in enumerate((*PACED, *STEPS)):
        for precision, look in ((FLOAT32, Look.STRONG), (BFLOAT16, Look.FAINT)):
            mine = [w for w in CONTENDERS["fast"] if (w.name, w.precision) == (name, precision)]
            points = [(math.log2(w.every), values[w.key]) for w in mine if w.key in values]
            if points:
                lines.append(Line(f"{name}, {precision}", [points], colour, look, dots=True))
    return line_chart(title, x, y, lines)
