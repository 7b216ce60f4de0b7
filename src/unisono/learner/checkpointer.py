"""Saves and restores a learner's part of a checkpoint."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn

import unisono
from unisono.coordinator.messages import PartWritten
from unisono.errors import UserError
from unisono.fabric import Address, TensorVector
from unisono.learner.checkpoint_files import (
    Loaded,
    NotWrittenError,
    checkpoints,
    load,
    part_folder,
    remove_torn,
    set_aside,
    write_part,
)
from unisono.learner.optimizers import Optimizers
from unisono.learner.state_codec import encode
from unisono.learner.task import Task
from unisono.strategies.base import StateBundle

KEYS = ("about", "made_with", "model", "optimizers", "extra_state", "random", "strategy")
"""The keys of a learner's part."""

log = logging.getLogger("unisono")


class Stateful(Protocol):
    """A scheduler, a GradScaler, an average of your own."""

    def state_dict(self) -> dict[str, Any]:
        """What to keep."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> Any:
        """The inverse."""


class Checkpointer:
    """Model, optimizers, random state, the strategy's memory and the user's other objects.

    ``about`` says, in words, what must be the same for a checkpoint to mean anything: a learner
    that differs is refused. ``place`` is the member's among those of its role that began the run.
    """

    def __init__(
        self,
        directory: Path,
        who: Address,
        place: int,
        model: nn.Module,
        optimizers: Optimizers,
        extra_state: Mapping[str, Stateful],
        about: Mapping[str, str],
        *,
        has_shards: bool = False,
    ) -> None:
        self._directory = directory.absolute()
        self._has_shards = has_shards
        self._who = who
        self._place = place
        self._model = model
        self._optimizers = optimizers
        self._extra_state = dict(extra_state)
        self._about = {**about, "optimizer": optimizers.describe()}
        self._passed_over: list[Path] = []
        for name, thing in self._extra_state.items():
            _check(name, thing)

    def begin(self, *, resume: bool) -> None:
        """Prepares the directory for a run in which nobody has trained yet."""
        found = checkpoints(self._directory)
        if found and not resume:
            raise UserError(
                f"{self._directory} holds checkpoints of an earlier run: go on from them with "
                "resume=True, or choose another directory"
            )
        remove_torn(self._directory)
        for folder in self._passed_over:
            set_aside(folder)

    def write_part(self, sync_round: int, strategy: StateBundle, keep: int) -> PartWritten:
        """Writes this learner's part, and returns the message to the coordinator."""
        error = ""
        try:
            self.write(sync_round, strategy)
        except NotWrittenError as failed:
            error = str(failed)
        return PartWritten(sync_round, str(part_folder(self._directory, sync_round)), keep, error)

    def write(self, sync_round: int, strategy: StateBundle) -> None:
        """Writes this learner's part.

        Raises:
            NotWrittenError: the disk is full, or fails; or there is nothing worth going back to.
        """
        if not all(bool(p.isfinite().all()) for p in self._model.parameters()):
            raise NotWrittenError("the parameters are not finite")
        vectors = {}
        for name, vector in strategy.vectors.items():
            assert isinstance(vector, TensorVector)
            vectors[name] = vector.tensor
        state = {
            "about": self._about,
            "made_with": _versions(),
            "model": dict(self._model.state_dict()),
            "optimizers": self._optimizers.state_dicts(),
            "extra_state": {name: thing.state_dict() for name, thing in self._extra_state.items()},
            "random": _random_state(),
            "strategy": {"plain": strategy.plain, "vectors": vectors},
        }
        write_part(self._directory, sync_round, self._who.number, state, self._who.role)

    def restore(self, task: Task[Any]) -> tuple[Task[Any], list[StateBundle]]:
        """Loads the newest intact checkpoint, if any; returns the task that continues from it.

        And what the strategy has in this member's part and, with shards, in those of the others.

        Raises:
            UserError: there are some, but none is whole; or it was made by another run.
        """
        others = self._has_shards
        loaded = load(self._directory, self._place, KEYS, self._who.role, others=others)
        if loaded is None:
            return task, []
        self._passed_over = [folder for folder, _ in loaded.passed_over]
        state, pool, folder = loaded.state, loaded.pool, loaded.folder
        self._compare(folder, state)
        committed = [(a, b) for a, b in pool["committed"]]
        reached = max((stop for _, stop in committed), default=0)
        if reached > task.total:
            raise UserError(
                f"{folder} has {reached} minibatches behind it, and this run has only "
                f"{task.total}: give it more epochs, or begin a new one"
            )
        if self._who.number == 0:
            _tell(loaded)
        with _told_in_one_line(folder, "the model"):
            self._model.load_state_dict(state["model"])
        with _told_in_one_line(folder, "the optimizer"):
            self._optimizers.load_state_dicts(state["optimizers"])
        for name, thing in self._extra_state.items():
            with _told_in_one_line(folder, f"extra_state[{name!r}]"):
                thing.load_state_dict(state["extra_state"][name])
        with _told_in_one_line(folder, "the random state"):
            _set_random_state(state["random"])
        with _told_in_one_line(folder, "the strategy"):
            parts = [_bundle(part) for part in [state["strategy"], *loaded.others]]
        return replace(task, committed=committed, sync_round=pool["sync_round"]), parts

    def _compare(self, folder: Path, state: dict[str, Any]) -> None:
        for what, value in self._about.items():
            before = state["about"].get(what)
            if before != value:
                raise UserError(
                    f"{folder} was made with {what} {before}, and this is {value}: resume with the "
                    "same, or begin a new run"
                )
        missing = sorted(set(self._extra_state) - set(state["extra_state"]))
        if missing:
            raise UserError(
                f"{folder} holds no {missing[0]!r}: it was not in extra_state= when it was made"
            )


def _bundle(strategy: dict[str, Any]) -> StateBundle:
    vectors = {name: TensorVector(tensor) for name, tensor in strategy["vectors"].items()}
    return StateBundle(strategy["plain"], dict(vectors))


def _check(name: str, thing: Any) -> None:
    """Refuses state that cannot be saved, at the start of the run."""
    if not hasattr(thing, "state_dict") or not hasattr(thing, "load_state_dict"):
        raise UserError(
            f"extra_state[{name!r}] has no state_dict and load_state_dict: it cannot be kept"
        )
    try:
        encode(thing.state_dict(), {})
    except TypeError as error:
        raise UserError(f"extra_state[{name!r}]: {error}") from None


@contextmanager
def _told_in_one_line(folder: Path, what: str) -> Iterator[None]:
    """Turns errors of loading into one line: the state was made by other code."""
    try:
        yield
    except (ValueError, LookupError, TypeError, AttributeError, RuntimeError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise UserError(
            f"{folder} does not fit {what} of this run ({type(error).__name__}: {reason}): resume "
            "with the code and the versions that made it, or begin a new run"
        ) from error


def _tell(loaded: Loaded) -> None:
    """Warns of damaged checkpoints, and of other versions of the software."""
    if loaded.passed_over:
        reasons = ", ".join(f"{folder.name} ({reason})" for folder, reason in loaded.passed_over)
        text = "unisono: checkpoint %s was passed over, going on from %s"
        log.warning(text, reasons, loaded.folder.name)
    here = _versions()
    made = loaded.state["made_with"]
    other = [f"{name} {made.get(name)}" for name in here if made.get(name) != here[name]]
    if other:
        now = ", ".join(f"{name} {version}" for name, version in here.items())
        text = "unisono: %s was made with %s, and this is %s: the same bytes are not promised"
        log.warning(text, loaded.folder, ", ".join(other), now)


def _versions() -> dict[str, str]:
    return {"unisono": unisono.__version__, "torch": torch.__version__}


def _random_state() -> list[torch.Tensor]:
    states = [torch.get_rng_state()]
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        states.append(torch.cuda.get_rng_state())
    return states


def _set_random_state(states: list[torch.Tensor]) -> None:
    torch.set_rng_state(states[0])
    if len(states) > 1 and torch.cuda.is_available():
        torch.cuda.set_rng_state(states[1])
