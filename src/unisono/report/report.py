"""report.html: the curves of one run, or of several over each other, in one offline file."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

from unisono.errors import UserError
from unisono.report.axes import duration, short
from unisono.report.history import History
from unisono.report.learners_section import learners
from unisono.report.learning_section import learning
from unisono.report.page import page, tiles
from unisono.report.runs_table import RunFacts, known, logprob, percent, table
from unisono.report.word_errors import words
from unisono.runs.directory import write_atomically


def write_report(runs: Sequence[Path], out: Path) -> Path:
    """Writes the report of one run or several.

    Args:
        runs: run directories, finished or not.
        out: the HTML file to write.

    Returns:
        The file.

    Raises:
        UserError: a path is not a run, or the file cannot be written.
    """
    if not runs:
        raise UserError("a report needs at least one run directory")
    histories = [History.read(path, name) for path, name in zip(runs, _names(runs), strict=True)]
    write_atomically(out, render(histories).encode())
    return out


def render(histories: Sequence[History]) -> str:
    """Returns the report as HTML."""
    alone = len(histories) == 1
    trained = [history.without_start_up() for history in histories]
    title = histories[0].name if alone else f"{len(histories)} runs compared"
    body = [f"<h1>{escape(title)}</h1>"]
    if alone:
        body += [f'<p class="soft">{escape(_subtitle(histories[0]))}</p>', _tiles(histories[0])]
    else:
        body.append(f'<p class="soft">{escape(", ".join(run.name for run in histories))}</p>')
    body += [table(histories), *words([(run.name, run.decoded) for run in histories])]
    body += learning(trained)
    for i, history in enumerate(trained):
        body += learners(history, None if alone else i)
    return page(f"Unisono: {title}", body)


def _names(runs: Sequence[Path]) -> list[str]:
    """Names runs by their folders, with as much of the path as tells them apart."""
    parts = [path.resolve().parts for path in runs]
    names: list[str] = []
    for depth in range(1, max(len(part) for part in parts) + 1):
        names = ["/".join(part[-depth:]) for part in parts]
        if len(set(names)) == len(set(parts)):
            break
    return names


def _subtitle(history: History) -> str:
    config = history.config
    if history.own_loop:
        said = history.lines[:1] or ["a loop of your own"]
        return " ".join(said[0].split())
    people = "1 learner" if config.learners == "1" else f"{config.learners} learners"
    return f"{config.strategy_name}, {people}, {config.model}, {config.chosen_optimizer.value}"


def _heldout(facts: RunFacts, *, own_loop: bool) -> list[tuple[str, str]]:
    """What is known of the held-out data; a loop of one's own may have none."""
    tiles = [
        ("held-out log-prob (nats/frame)", facts.validation_logprob, logprob),
        ("held-out frame accuracy", facts.validation_accuracy, percent),
    ]
    return [(n, known(v, write)) for n, v, write in tiles if v is not None or not own_loop]


def _tiles(history: History) -> str:
    facts = RunFacts.of(history)
    heard = [(f"word errors, {each.name}", percent(each.wer)) for each in history.decoded]
    return tiles(
        [
            *heard,
            *_heldout(facts, own_loop=history.own_loop),
            ("examples a second", known(facts.examples_per_s, short)),
            ("examples trained", known(facts.examples, short)),
            ("training time", duration(facts.wall_s)),
            ("start-up", duration(facts.start_up_s)),
        ]
    )
