"""Checks the arguments of a ``Learner``; errors are one line."""

from __future__ import annotations

import json
import logging
import operator
import os
from collections.abc import Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from torch import nn
from torch.optim import Optimizer

from unisono.config.tables import MOST, MOST_AHEAD, MOST_EPOCHS
from unisono.errors import UserError
from unisono.strategies.base import Strategy, examples_to_minibatches
from unisono.strategies.options import UNIT
from unisono.strategies.registry import make
from unisono.text import counted

_log = logging.getLogger(__name__)

_EVENT_KEYS = ("event", "learner", "time")
_LONGEST_EVENT = 65536
"""Half of a message."""
ENOUGH_ROUNDS = 10
"""With fewer rounds in a run its learners hardly train together."""


_MOST = {"epochs": MOST_EPOCHS, "prefetch": MOST_AHEAD, "seed": 2**63 - 1}
"""Of arguments that may not be ``MOST``."""


def whole_number(name: str, value: Any, least: int | None = None) -> int:
    """Checks an integer argument; raises ``UserError`` if it is none, too small or too large."""
    try:
        number = operator.index(value)
    except TypeError:
        raise UserError(f"{name} is {value!r}: it must be a whole number") from None
    if isinstance(value, bool):
        raise UserError(f"{name} is {value!r}: it must be a whole number")
    if least is not None and number < least:
        raise UserError(f"{name} is {number}: it must be at least {least}")
    most = _MOST.get(name, MOST)
    if number > most:
        raise UserError(f"{name} is {number}: it must be at most {most}")
    return number


def chosen_strategy(strategy: Any, learners: int) -> Strategy:
    """The strategy of that name, the instance itself, or the default for so many learners."""
    if strategy is None:
        strategy = "solo" if learners == 1 else "averaging"
    if isinstance(strategy, str):
        return make(strategy)
    if not isinstance(strategy, Strategy):
        raise UserError(
            f"strategy is {strategy!r}: give a name, such as 'averaging', or an instance, such as "
            "unisono.Averaging(every=4096)"
        )
    return strategy


def chosen_optimizers(model: Any, optimizer: Any) -> list[Optimizer]:
    """Checks one or several optimizers, which must hold parameters of the model."""
    if not isinstance(model, nn.Module):
        raise UserError(f"the model is {type(model).__name__}: it must be a torch.nn.Module")
    several = not isinstance(optimizer, Optimizer) and isinstance(optimizer, Iterable)
    optimizers = list(optimizer) if several else [optimizer]
    for each in optimizers:
        if not isinstance(each, Optimizer):
            raise UserError(f"the optimizer is {each!r}: it must be a torch.optim.Optimizer")
    own = {id(parameter) for parameter in model.parameters()}
    groups = [group for each in optimizers for group in each.param_groups]
    stepped = [id(parameter) for group in groups for parameter in group["params"]]
    if stepped and own.isdisjoint(stepped):
        raise UserError(
            "the optimizer has no parameter of this model: make it with model.parameters()"
        )
    return optimizers


def checkpoint_folder(checkpoints: Path | str | None, *, resume: bool) -> Path | None:
    """Checks where checkpoints are to be written, and read from with ``resume``."""
    if checkpoints is None:
        if resume:
            raise UserError("resume=True goes on from checkpoints: say where, checkpoints=FOLDER")
        return None
    folder = Path(checkpoints)
    for place in (folder, *folder.absolute().parents):
        if os.path.lexists(place) and not place.is_dir():
            raise UserError(f"checkpoints={str(folder)!r}: {place} is not a folder")
    return folder


def check_inside(inside: bool) -> None:
    """Refuses what the ``with`` statement of a learner must be around."""
    if not inside:
        raise UserError(
            "the learner is used outside of its with statement: put the loop over learner.draw() "
            "inside of `with unisono.Learner(...) as learner:`"
        )


def event_fields(name: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of an event as plain data; scalars of torch and numpy become numbers.

    Raises:
        UserError: a value is not made of numbers, text, lists and tables, or they are too long.
    """
    plain: dict[str, Any] = {}
    for key, value in fields.items():
        if key in _EVENT_KEYS:
            raise UserError(f"event {name!r}: {key!r} is set for every event; call yours otherwise")
        try:
            plain[key] = json.loads(json.dumps(value, default=_number))
        except (TypeError, ValueError):
            raise UserError(
                f"event {name!r}: {key!r} is a {type(value).__name__}: give numbers, text, or "
                "lists or tables of them"
            ) from None
    size = len(json.dumps({name: plain}))
    if size > _LONGEST_EVENT:
        raise UserError(
            f"event {name[:80]!r} is {size} characters: it can have {_LONGEST_EVENT}; write what "
            "is larger into a file of your own"
        )
    return plain


def _number(value: Any) -> Any:
    try:
        return value.item()
    except (AttributeError, RuntimeError):
        raise TypeError from None


def warn_of_few_rounds(
    strategy: Strategy, learners: int, minibatches: int, batch_size: int
) -> None:
    """Warns if ``every`` is so large that the run has hardly any rounds."""
    for option in fields(strategy):
        every = getattr(strategy, option.name)
        if UNIT not in option.metadata or not isinstance(every, int) or learners < 2:
            continue
        share = examples_to_minibatches(every, batch_size)
        rounds = minibatches // (share * learners)
        if rounds < ENOUGH_ROUNDS and share > 1:
            _log.warning(
                "unisono: %s=%d leaves %s for %s on %s: give a smaller one, or %s=auto",
                option.name,
                every,
                counted(rounds, "round"),
                counted(learners, "learner"),
                counted(minibatches, "minibatch", "minibatches"),
                option.name,
            )
