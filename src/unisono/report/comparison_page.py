"""report.html of a comparison: its table, all curves over each other, the learners of each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from unisono.report.axes import Axis, Quantity, make_axis
from unisono.report.charts import COLOURS, Line, Look, colour_of, line_chart
from unisono.report.comparison import Comparison
from unisono.report.comparison_tables import grid_table, result_table
from unisono.report.history import Abscissa, Curve, History, mean_curve
from unisono.report.learners_section import learners
from unisono.report.learning_section import ABSCISSAE, figure, time_chart
from unisono.report.page import bullets, charts, legend, page


@dataclass(frozen=True)
class _Plotted:
    """A run that is drawn, in the colour of its strategy."""

    history: History
    colour: int
    look: Look


def render(comparison: Comparison) -> str:
    """Returns the report as HTML."""
    title = f"{len(comparison.rows)} strategies compared"
    drawn = _plotted(comparison)
    body = [f"<h1>{title}</h1>", bullets(comparison.notes()), result_table(comparison)]
    body += _section("Time to target", comparison, _time_to_target(comparison))
    body += _section("Learning", comparison, _learning(drawn))
    body += _section("Sharing", comparison, _sharing(drawn))
    body += _section("Learning rates", comparison, [*_rates(comparison), grid_table(comparison)])
    for each in drawn:
        if each.history.config.seed == comparison.seeds[0]:
            body += learners(each.history, each.colour)
    return page(f"Unisono: {title}", body)


def _plotted(comparison: Comparison) -> list[_Plotted]:
    """Every seed's run of every strategy at its chosen rate."""
    look = Look.STRONG if len(comparison.seeds) == 1 else Look.THIN
    drawn = []
    for colour, row in enumerate(comparison.rows):
        for result in row.chosen.results if row.chosen is not None else ():
            history = History.read(result.run, f"{row.name}, seed {result.seed}")
            drawn.append(_Plotted(history.without_start_up(), colour, look))
    return drawn


def _section(title: str, comparison: Comparison, figures: Sequence[str]) -> list[str]:
    """A heading, the strategies' colours and the charts; nothing where there is no chart."""
    if not figures:
        return []
    entries = [
        ("dashed" if i >= COLOURS else "", colour_of(i), row.name)
        for i, row in enumerate(comparison.rows)
    ]
    return [f"<h2>{title}</h2>", legend(entries), charts(figures)]


def _time_to_target(comparison: Comparison) -> list[str]:
    """Log-prob against seconds of training, with the targets as lines across."""
    look = Look.STRONG if len(comparison.seeds) == 1 else Look.THIN
    lines = [
        Line(f"{row.name}, seed {curve.seed}", [list(curve.points)], colour, look, dots=True)
        for colour, row in enumerate(comparison.rows)
        for curve in row.curves
    ]
    targets = next((row.targets for row in comparison.rows if row.targets), ())
    heights = {f"target: solo less {target.margin:g}": target.target for target in targets}
    return time_chart("Reported log-prob against time", lines, heights)


def _learning(drawn: Sequence[_Plotted]) -> list[str]:
    return [
        *_figures(drawn, "Training loss", "loss (nats/frame)", _losses),
        *_figures(
            drawn,
            "Reported log-prob",
            "log-prob (nats/frame)",
            _check("report_logprob"),
            time=False,
        ),
        *_figures(drawn, "Reported accuracy", "frames right", _check("report_accuracy")),
    ]


def _sharing(drawn: Sequence[_Plotted]) -> list[str]:
    """Staleness and consensus distance, where the metrics have them."""
    return [
        *_figures(drawn, "Staleness", "updates", _staleness),
        *_figures(drawn, "Consensus distance", "distance", _distance),
    ]


def _losses(history: History, x: Abscissa) -> Curve:
    return mean_curve(history.losses(x))


def _check(key: str) -> Callable[[History, Abscissa], Curve]:
    return lambda history, x: history.checks(key, x)


def _staleness(history: History, x: Abscissa) -> Curve:
    curves = history.numbers("train", "staleness", x)
    # Strategies that know no staleness say 0.
    seen = any(point[1] for curve in curves for piece in curve for point in piece)
    return mean_curve(curves) if seen else []


def _distance(history: History, x: Abscissa) -> Curve:
    """From learners to the consensus: of all, when it was made, or of each with its rounds."""
    told = history.series("consensus", "distance", x)
    return told or mean_curve(history.numbers("round", "distance", x))


def _figures(
    drawn: Sequence[_Plotted],
    name: str,
    y_title: str,
    curve: Callable[[History, Abscissa], Curve],
    *,
    time: bool = True,
) -> list[str]:
    """A chart against examples, and one against time."""
    histories = [each.history for each in drawn]
    figures = []
    for x in ABSCISSAE[: 2 if time else 1]:
        lines = []
        for each in drawn:
            found = curve(each.history, x.of)
            few = sum(len(piece) for piece in found) <= 32
            lines.append(Line(each.history.name, found, each.colour, each.look, dots=few))
        figures += figure(name, y_title, x, lines, histories)
    return figures


def _rates(comparison: Comparison) -> list[str]:
    """How well each rate did, on the speakers that it is chosen by; rates at equal distances."""
    lines = []
    for colour, row in enumerate(comparison.rows):
        means = [(float(place), cell.choice_logprob) for place, cell in enumerate(row.grid)]
        found = [(place, mean) for place, mean in means if mean is not None]
        lines.append(Line(row.name, [found], colour, dots=True))
    heights = [point[1] for line in lines for piece in line.curve for point in piece]
    if not heights or len(comparison.rates) < 2:
        return []
    ticks = [(float(place), f"{rate:g}") for place, rate in enumerate(comparison.rates)]
    x = Axis("multiple of the strategy's own rate", -0.2, len(ticks) - 0.8, ticks)
    y = make_axis("log-prob (nats/frame)", heights, Quantity.NUMBER)
    title = "Best log-prob of the choosing speakers against the rate"
    return [line_chart(title, x, y, lines)]
