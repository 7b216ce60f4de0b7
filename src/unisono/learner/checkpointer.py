"""What a learner puts into a checkpoint, and takes out again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn

from unisono.errors import UserError
from unisono.fabric import TensorVector
from unisono.learner.checkpoint_files import (
    checkpoints,
    read_part,
    read_pool,
    remove_torn,
    write_part,
)
from unisono.learner.optimizers import Optimizers
from unisono.learner.state_codec import encode
from unisono.learner.task import Task
from unisono.strategies.base import StateBundle


class Stateful(Protocol):
    """A scheduler, a GradScaler, an average of your own."""

    def state_dict(self) -> dict[str, Any]:
        """What to keep."""
        ...

    def load_state_dict(self, state_dict: dict[str, Any]) -> Any:
        """The inverse."""
        ...


class Checkpointer:
    """Model, optimizers, random state, the strategy's memory and the user's other objects.

    ``about`` says, in words, what must be the same for a checkpoint to mean anything: a learner
    that differs is refused.
    """

    def __init__(
        self,
        directory: Path,
        number: int,
        model: nn.Module,
        optimizers: Optimizers,
        extra_state: Mapping[str, Stateful],
        about: Mapping[str, str],
    ) -> None:
        self._directory = directory.absolute()
        self._number = number
        self._model = model
        self._optimizers = optimizers
        self._extra_state = dict(extra_state)
        self._about = dict(about)
        for name, thing in self._extra_state.items():
            _check(name, thing)

    def begin(self, *, resume: bool) -> None:
        """The run is new and nobody has trained yet: looks at what is in the directory."""
        found = checkpoints(self._directory)
        if found and not resume:
            raise UserError(
                f"{self._directory} holds checkpoints of an earlier run: go on from them with "
                "resume=True, or choose another directory"
            )
        remove_torn(self._directory)

    def write(self, sync_round: int, strategy: StateBundle) -> Path:
        """Writes this learner's part."""
        vectors = {}
        for name, vector in strategy.vectors.items():
            assert isinstance(vector, TensorVector)
            vectors[name] = vector.tensor
        state = {
            "about": self._about,
            "model": dict(self._model.state_dict()),
            "optimizers": self._optimizers.state_dicts(),
            "also": {name: thing.state_dict() for name, thing in self._extra_state.items()},
            "random": _random_state(),
            "strategy": {"plain": strategy.plain, "vectors": vectors},
        }
        return write_part(self._directory, sync_round, self._number, state)

    def restore(self, task: Task[Any]) -> tuple[Task[Any], StateBundle | None]:
        """Loads the newest checkpoint; the task goes on from there. Without one: as it is."""
        found = checkpoints(self._directory)
        if not found:
            return task, None
        state, pool = read_part(found[-1], self._number), read_pool(found[-1])
        self._compare(found[-1], state)
        committed = [(a, b) for a, b in pool["committed"]]
        reached = max((stop for _, stop in committed), default=0)
        if reached > task.total:
            raise UserError(
                f"{found[-1]} has {reached} minibatches behind it, and this run has only "
                f"{task.total}: give it more epochs, or begin a new one"
            )
        self._model.load_state_dict(state["model"])
        self._optimizers.load_state_dicts(state["optimizers"])
        for name, thing in self._extra_state.items():
            thing.load_state_dict(state["also"][name])
        _set_random_state(state["random"])
        strategy = state["strategy"]
        vectors = {name: TensorVector(tensor) for name, tensor in strategy["vectors"].items()}
        bundle = StateBundle(strategy["plain"], dict(vectors))
        return replace(task, committed=committed, sync_round=pool["sync_round"]), bundle

    def _compare(self, folder: Path, state: dict[str, Any]) -> None:
        for what, value in self._about.items():
            before = state["about"].get(what)
            if before != value:
                raise UserError(f"{folder} was made with {what} {before}, and this is {value}")
        missing = sorted(set(self._extra_state) - set(state["also"]))
        if missing:
            raise UserError(
                f"{folder} holds no {missing[0]!r}: it was not in also= when it was made"
            )
        kept, mine = len(state["optimizers"]), len(self._optimizers)
        if kept != mine:
            raise UserError(f"{folder} was made with {kept} optimizers, and this is {mine}")


def _check(name: str, thing: Any) -> None:
    """What cannot be kept is told at the start, not at the first checkpoint."""
    if not hasattr(thing, "state_dict") or not hasattr(thing, "load_state_dict"):
        raise UserError(f"also[{name!r}] has no state_dict and load_state_dict: it cannot be kept")
    try:
        encode(thing.state_dict(), {})
    except TypeError as error:
        raise UserError(f"also[{name!r}]: {error}") from None


def _random_state() -> list[torch.Tensor]:
    states = [torch.get_rng_state()]
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        states.append(torch.cuda.get_rng_state())
    return states


def _set_random_state(states: list[torch.Tensor]) -> None:
    torch.set_rng_state(states[0])
    if len(states) > 1 and torch.cuda.is_available():
        torch.cuda.set_rng_state(states[1])
