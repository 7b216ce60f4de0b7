"""What a learner puts into a checkpoint, and takes out again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn

from unisono.fabric import TensorVector
from unisono.learner.checkpoint import checkpoints, read_part, read_pool, write_part
from unisono.learner.optimizers import Optimizers
from unisono.learner.session import Task
from unisono.strategies.base import Parcel


class Stateful(Protocol):
    """A scheduler, a GradScaler, an average of your own."""

    def state_dict(self) -> dict[str, Any]:
        """What to keep."""
        ...

    def load_state_dict(self, state_dict: dict[str, Any]) -> Any:
        """The inverse."""
        ...


class Keeper:
    """Model, optimizers, random state, the strategy's memory and the user's other objects."""

    def __init__(
        self,
        directory: Path,
        number: int,
        model: nn.Module,
        optimizers: Optimizers,
        also: Mapping[str, Stateful],
    ) -> None:
        self._directory = directory
        self._number = number
        self._model = model
        self._optimizers = optimizers
        self._also = dict(also)

    def write(self, agreement: int, strategy: Parcel) -> Path:
        """Writes this learner's part."""
        vectors = {}
        for name, vector in strategy.vectors.items():
            assert isinstance(vector, TensorVector)
            vectors[name] = vector.tensor
        state = {
            "model": dict(self._model.state_dict()),
            "optimizers": self._optimizers.state_dicts(),
            "also": {name: thing.state_dict() for name, thing in self._also.items()},
            "random": _random_state(),
            "strategy": {"plain": strategy.plain, "vectors": vectors},
        }
        return write_part(self._directory, agreement, self._number, state)

    def restore(self, task: Task[Any]) -> tuple[Task[Any], Parcel | None]:
        """Loads the newest checkpoint; the task goes on from there. Without one: as it is."""
        found = checkpoints(self._directory)
        if not found:
            return task, None
        state, pool = read_part(found[-1], self._number), read_pool(found[-1])
        self._model.load_state_dict(state["model"])
        self._optimizers.load_state_dicts(state["optimizers"])
        for name, thing in self._also.items():
            thing.load_state_dict(state["also"][name])
        _set_random_state(state["random"])
        strategy = state["strategy"]
        vectors = {name: TensorVector(tensor) for name, tensor in strategy["vectors"].items()}
        parcel = Parcel(strategy["plain"], dict(vectors))
        settled = [(a, b) for a, b in pool["settled"]]
        return replace(task, settled=settled, agreement=pool["agreement"]), parcel


def _random_state() -> list[torch.Tensor]:
    states = [torch.get_rng_state()]
    if torch.cuda.is_available():
        states.append(torch.cuda.get_rng_state())
    return states


def _set_random_state(states: list[torch.Tensor]) -> None:
    torch.set_rng_state(states[0])
    if len(states) > 1 and torch.cuda.is_available():
        torch.cuda.set_rng_state(states[1])
