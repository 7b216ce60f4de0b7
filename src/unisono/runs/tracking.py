"""Trackers: where the figures of a run go besides its ``metrics.jsonl``.

TensorBoard is here; another package brings its own by the entry point ``unisono.trackers``: the
name of something that takes a ``RunDirectory`` and gives a ``Tracker``.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import entry_points
from typing import Any, Protocol

from unisono.errors import UserError
from unisono.runs.directory import RunDirectory

GROUP = "unisono.trackers"
FOLDER = "tensorboard"
"""Of TensorBoard's files, in the run's directory."""


class Tracker(Protocol):
    """Receives the figures of one run."""

    def scalar(self, name: str, value: float, step: int) -> None:
        """A figure, such as ``heldout/logprob``; ``step`` is the examples that all have trained."""

    def close(self) -> None:
        """Called when the run is over, or interrupted."""


TrackerFactory = Callable[[RunDirectory], Tracker]


class TensorBoard:
    """Writes TensorBoard's event files: ``tensorboard --logdir RUN``."""

    def __init__(self, run: RunDirectory) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(str(run.path / FOLDER))

    def scalar(self, name: str, value: float, step: int) -> None:
        self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()


def find_tracker(name: str) -> TrackerFactory:
    """The tracker of that name.

    Raises:
        UserError: there is none, or what it needs is not installed.
    """
    if name == "tensorboard":
        if importlib.util.find_spec("tensorboard") is None:
            raise UserError("tracking=tensorboard needs: pip install 'unisono[tensorboard]'")
        return TensorBoard
    for entry in entry_points(group=GROUP):
        if entry.name == name:
            found: TrackerFactory = entry.load()
            return found
    known = sorted({"tensorboard", *(entry.name for entry in entry_points(group=GROUP))})
    raise UserError(f"there is no tracker {name!r}; known are {', '.join(known)}")


class Tracking:
    """Tells a tracker the figures of a run, from its events.

    The tracker is made with the first of them: it may start threads, and processes that are to be
    forked are started before. One that fails is told in one line, and no more; the run goes on.
    """

    def __init__(
        self, factory: TrackerFactory, run: RunDirectory, say: Callable[[str], None]
    ) -> None:
        self._factory, self._run, self._say = factory, run, say
        self._tracker: Tracker | None = None
        self._rates: dict[int, float] = {}
        self._failed = False

    def __call__(self, event: Mapping[str, Any]) -> None:
        for name, value in self._figures(event):
            if value is not None:
                self._try(self._tell, name, value, event["global_examples"])

    def close(self) -> None:
        """No more events come."""
        if self._tracker is not None:
            self._try(self._tracker.close)

    def _tell(self, name: str, value: float, step: int) -> None:
        if self._tracker is None:
            self._tracker = self._factory(self._run)
        self._tracker.scalar(name, value, step)

    def _try(self, action: Callable[..., None], *arguments: object) -> None:
        if self._failed:
            return
        try:
            action(*arguments)
        except Exception as error:  # a service that is away must not end a training
            self._failed = True
            self._say(f"unisono: tracking has failed, and the run goes on without: {error}")

    def _figures(self, event: Mapping[str, Any]) -> Iterator[tuple[str, float | None]]:
        if event["event"] == "train":
            self._rates[event["learner"]] = event["rate"]
            yield "train/loss", event["loss"]
            yield "train/learning_rate", event["learning_rate"]
            yield "train/examples_per_s", sum(self._rates.values())
            yield "train/learners", len(self._rates)
        elif event["event"] in ("lost", "leaves"):
            self._rates.pop(event["learner"], None)
        elif event["event"] == "validation":
            yield "heldout/logprob", event["logprob"]
            yield "heldout/accuracy", event["accuracy"]
            yield "train/logprob", event.get("train_logprob")
