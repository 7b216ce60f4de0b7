"""How far a run is: a bar on a terminal, a line a minute elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from unisono.runs.tail import Tail
from unisono.text import counted

PARENT_SHOWS = "UNISONO_PARENT_SHOWS"
"""Set for learners whose parent prints their validations."""
LINE_S = 60.0
"""Seconds of a run between two lines, where there is no bar."""
_WIDE = 160


def held_out(progress: float, score: Mapping[str, Any]) -> str:
    """A line on how good the model is, from a ``validation`` event."""
    text = (
        f"{100 * progress:5.1f}%  held out: log-prob {score['logprob']:.4f}, "
        f"accuracy {100 * score['accuracy']:.2f}%"
    )
    if "train_logprob" in score:
        text += (
            f"; train: log-prob {score['train_logprob']:.4f}, "
            f"accuracy {100 * score['train_accuracy']:.2f}%"
        )
    return text


def show(what: RenderableType) -> None:
    """Prints a table to standard output; where that is no terminal, its lines are not folded."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=_WIDE)
    console.print(what)


class Display:
    """Shows a run from its events. Used in a with statement."""

    def __init__(self, out: TextIO | None = None, *, prints_scores: bool = False) -> None:
        self._console = Console(file=out or sys.stderr)
        self.is_live = self._console.is_terminal
        self._prints_scores = prints_scores
        self._scored = 0.0
        # Drawn when something has happened, by whoever tells it: no thread of its own.
        self._bar = Progress(
            TextColumn("{task.percentage:5.1f}%"),
            BarColumn(bar_width=20),  # all of the line fits into 80 columns
            TextColumn("{task.fields[rate]}"),
            TextColumn("{task.fields[learners]}"),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=self._console,
            auto_refresh=False,
            transient=True,
            disable=not self.is_live,
        )
        self._task: TaskID | None = None
        self._rates: dict[int, float] = {}
        self._progress = 0.0
        self._shown: float | None = None

    def __enter__(self) -> Display:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def say(self, line: str) -> None:
        """A line that stays, above the bar."""
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def __call__(self, event: Mapping[str, Any]) -> None:
        """One event of the run."""
        name = event["event"]
        if name == "train":
            self._rates[event["learner"]] = event["rate"]
            self._progress = max(self._progress, event["progress"])
            self._show(event["time"])
        elif name in ("lost", "leaves"):
            self._rates.pop(event["learner"], None)
        elif name == "validation" and self._prints_scores:
            self._show_score(event)

    def _show_score(self, event: Mapping[str, Any]) -> None:
        """Learners validate beside training: one that is late must not follow a newer one."""
        if event["progress"] < self._scored:
            return
        self._scored = event["progress"]
        line = held_out(event["progress"], event)
        if self.is_live:
            self.say(line)
        else:
            print(line, flush=True)

    def _show(self, time: float) -> None:
        rate = f"{sum(self._rates.values()):,.0f} examples/s"
        learners = counted(len(self._rates), "learner")
        if not self.is_live:
            if self._shown is None:
                self._shown = time
            elif time - self._shown >= LINE_S:
                self._shown = time
                self.say(f"{100 * self._progress:5.1f}%  {rate}, {learners}")
            return
        if self._task is None:
            self._bar.start()
            self._task = self._bar.add_task("", total=1.0, rate=rate, learners=learners)
        self._bar.update(
            self._task, completed=self._progress, rate=rate, learners=learners, refresh=True
        )


class EventReaders:
    """Hands on the events that another process appends to a file."""

    def __init__(self, path: Path, *readers: Callable[[dict[str, Any]], None]) -> None:
        self._tail = Tail(path, from_start=False)
        self._readers = readers

    def __call__(self) -> None:
        """Those that have come since the last call."""
        for event in self._tail.read():
            for read in self._readers:
                with suppress(ValueError, KeyError, TypeError):  # an event of another version
                    read(event)
