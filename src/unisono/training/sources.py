"""Examples of a run's data that several learners have in common."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from unisono.config import Config
from unisono.data import Part
from unisono.models import build
from unisono.runs.directory import RunDirectory
from unisono.training.builders import Examples, open_data, shape_of, source_of

Sources = dict[Part, Examples]
"""The examples of each part of the data that somebody has read."""

_inherited: dict[Path, Sources] = {}


@contextmanager
def read_before_forks(run: RunDirectory, config: Config) -> Iterator[None]:
    """A context in which learners that are forks of this process find their data in memory.

    They share its pages, which nobody writes; each would otherwise normalise all frames for itself,
    and keep them. They also find torch._dynamo imported, for which the first optimizer of a process
    would need a second.
    """
    import torch._dynamo  # noqa: F401

    prep = open_data(config)
    model = build(config.model, seed=config.seed, **shape_of(config, prep))
    parts = [Part.TRAIN, *([Part.HELDOUT] if config.validation.wanted else [])]
    _inherited[run.path] = {part: source_of(config, prep, part, model, None) for part in parts}
    try:
        yield
    finally:
        del _inherited[run.path]


def inherited(run: RunDirectory) -> Sources:
    """What was read before this process was forked; nothing where it is no fork."""
    return _inherited.get(run.path, {})
