"""The table of the report: one row a run, from its summary or from its events so far."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

from unisono.report.axes import duration, short, signed
from unisono.report.charts import colour_of
from unisono.report.history import History, number
from unisono.text import counted


@dataclass(frozen=True)
class RunFacts:
    """What the table says of a run; None is not known."""

    learners: str
    examples: float | None
    start_up_s: float
    wall_s: float
    examples_per_s: float | None
    train_logprob: float | None
    validation_logprob: float | None
    validation_accuracy: float | None
    rounds: int
    bytes_sent: float
    staleness: float | None
    lost: int
    joined: int
    ended: str
    divergences: int
    rate_factor: float

    @property
    def how(self) -> str:
        """How it ended, and how often it had to go back."""
        if not self.divergences:
            return self.ended
        times = counted(self.divergences, "time")
        return f"{self.ended}; diverged {times}, learning rate x {self.rate_factor:g}"

    @classmethod
    def of(cls, history: History) -> RunFacts:
        """Takes the facts from the summary, or from the events where the run has not ended."""
        summary = history.summary
        if summary is None:
            return cls._so_far(history)
        return cls(
            learners=str(summary.learners),
            examples=summary.examples,
            start_up_s=summary.start_up_s,
            wall_s=summary.wall_s,
            examples_per_s=summary.examples_per_s,
            train_logprob=summary.train_logprob,
            validation_logprob=summary.validation_logprob,
            validation_accuracy=summary.validation_accuracy,
            rounds=summary.rounds,
            bytes_sent=summary.bytes_sent,
            staleness=summary.staleness.mean if summary.staleness.histogram else None,
            lost=summary.learners_lost,
            joined=summary.learners_joined,
            ended=summary.ended,
            divergences=summary.divergences,
            rate_factor=summary.rate_factor,
        )

    @classmethod
    def _so_far(cls, history: History) -> RunFacts:
        seen = [number(event, "global_examples") for event in history.events]
        examples = max((count for count in seen if count is not None), default=None)
        wall = max((event["time"] for event in history.events), default=0.0) - history.start_up_s
        rounds = history.named("round")
        checks = history.named("validation")
        last = checks[-1] if checks else {}
        return cls(
            learners=history.config.learners,
            examples=examples,
            start_up_s=history.start_up_s,
            wall_s=wall,
            examples_per_s=examples / wall if examples is not None and wall > 0 else None,
            train_logprob=number(last, "train_logprob"),
            validation_logprob=number(last, "logprob"),
            validation_accuracy=number(last, "accuracy"),
            rounds=max((int(number(event, "round") or 0) for event in rounds), default=0),
            bytes_sent=sum(number(event, "bytes") or 0.0 for event in rounds),
            staleness=None,
            lost=len(history.named("lost")),
            joined=history.joined_later,
            ended=history.ended,
            divergences=len(history.named("diverged")),
            rate_factor=history.config.rate.factor,
        )


def known(value: float | None, write: Callable[[float], str]) -> str:
    """Writes a number that may be unknown."""
    return "\N{EN DASH}" if value is None else write(value)


def logprob(value: float) -> str:
    """Writes a log-prob."""
    return signed(f"{value:.3f}")


def percent(value: float) -> str:
    """Writes a share."""
    return f"{value:.1%}".replace("%", " %")


def size(count: float) -> str:
    """Writes a number of bytes."""
    return f"{short(count)}B" if count >= 1000 else f"{count:.0f} B"


_HEADS = (
    ("text", "run", ""),
    ("text", "strategy", ""),
    ("", "learners", ""),
    ("", "examples", ""),
    ("", "start-up", ""),
    ("", "time", "training"),
    ("", "examples/s", ""),
    ("", "log-prob", "training"),
    ("", "log-prob", "held out"),
    ("", "accuracy", "held out"),
    ("", "rounds", ""),
    ("", "sent", ""),
    ("", "staleness", "mean"),
    ("text", "ended", ""),
)


def table(histories: Sequence[History]) -> str:
    """Returns the table; among several runs of the same data the best numbers are set off."""
    facts = [RunFacts.of(history) for history in histories]
    best: dict[str, tuple[float | None, float | None]] = {}
    for data in {history.data for history in histories}:
        alike = [
            fact for history, fact in zip(histories, facts, strict=True) if history.data == data
        ]
        best[data] = (
            _best([fact.validation_logprob for fact in alike]),
            _best([fact.validation_accuracy for fact in alike]),
        )
    head = "".join(
        f'<th class="{kind}">{name}<small>{more}</small></th>' for kind, name, more in _HEADS
    )
    rows = []
    for i, (history, fact) in enumerate(zip(histories, facts, strict=True)):
        swatch = f'<span class="swatch" style="{colour_of(i)}"></span>'
        best_logprob, best_accuracy = best[history.data]
        came = [f"{fact.lost} lost"] if fact.lost else []
        came += [f"{fact.joined} joined"] if fact.joined else []
        people = f"{fact.learners} <small>({', '.join(came)})</small>" if came else fact.learners
        cells = [
            ("text why", swatch + escape(history.name)),
            ("text", escape(history.config.strategy_name)),
            ("", people),
            ("", known(fact.examples, short)),
            ("", duration(fact.start_up_s)),
            ("", duration(fact.wall_s)),
            ("", known(fact.examples_per_s, short)),
            ("", known(fact.train_logprob, logprob)),
            (
                _class(fact.validation_logprob, best_logprob),
                known(fact.validation_logprob, logprob),
            ),
            (
                _class(fact.validation_accuracy, best_accuracy),
                known(fact.validation_accuracy, percent),
            ),
            ("", f"{fact.rounds:,}"),
            ("", size(fact.bytes_sent)),
            ("", known(fact.staleness, lambda value: f"{value:.1f}")),
            ("text why" if fact.ended == "finished" else "text why bad", escape(fact.how)),
        ]
        rows.append(
            "<tr>" + "".join(f'<td class="{kind}">{cell}</td>' for kind, cell in cells) + "</tr>"
        )
    note = ""
    if len(best) > 1:
        warning = "These runs are of different data: their log-probs cannot be compared."
        note = f'<p class="soft">{warning}</p>'
    return f'<div class="table"><table><tr>{head}</tr>\n{"".join(rows)}</table></div>{note}'


def _best(values: Sequence[float | None]) -> float | None:
    measured = [value for value in values if value is not None]
    return max(measured) if len(measured) > 1 else None


def _class(value: float | None, best: float | None) -> str:
    return "best" if value is not None and value == best else ""
