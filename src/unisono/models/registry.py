"""Models by name: ours, and those that other packages bring by entry point."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from importlib.metadata import entry_points
from typing import Any

from torch import nn

from unisono.errors import UserError
from unisono.models.dnn import DNN
from unisono.models.lstm import BLSTM, LSTM
from unisono.models.tdnn import TDNN

GROUP = "unisono.models"


class Takes(str, Enum):
    """What an example of a model's training data is."""

    FRAMES = "frames"
    """One frame with its context, as one row: N x inputs to N x outputs."""
    CHUNKS = "chunks"
    """Frames in a row: N x (left + T + right) x inputs to N x T x outputs.

    The module says with its attributes `left` and `right` how many frames it needs around them.
    """


@dataclass(frozen=True, kw_only=True)
class Model:
    """What `unisono train --model NAME` needs to know of a model.

    Another package registers one by an entry point of the group `unisono.models`, whose name is
    the model's:

        [project.entry-points."unisono.models"]
        conformer = "my_package:CONFORMER"

    Attributes:
        build: Makes the module. It is called with the keywords `inputs` (numbers in an example's
            row, or in a frame), `outputs` (states), `seed`, and those of `options`.
        takes: Frames or chunks.
        description: One line for `--help`.
        options: The further keywords of `build`, and for each the key of `[network]` that its
            value comes from.
    """

    build: Callable[..., nn.Module]
    takes: Takes
    description: str
    options: Mapping[str, str] = field(default_factory=dict)


def _same(*keys: str) -> dict[str, str]:
    return {key: key for key in keys}


_OURS: dict[str, Model] = {
    "dnn": Model(
        build=DNN,
        takes=Takes.FRAMES,
        description="ReLU layers over a window of frames",
        options=_same("hidden", "dropout", "batch_norm"),
    ),
    "tdnn": Model(
        build=TDNN,
        takes=Takes.CHUNKS,
        description="time-delay network: dilated convolutions over time",
        options=_same("hidden", "dropout", "steps", "batch_norm"),
    ),
    "lstm": Model(
        build=LSTM,
        takes=Takes.CHUNKS,
        description="LSTM layers with projection and a label delay",
        options={
            **_same("hidden", "dropout", "left"),
            "right": "delay",
            "projection": "projection",
        },
    ),
    "blstm": Model(
        build=BLSTM,
        takes=Takes.CHUNKS,
        description="bidirectional LSTM layers and a linear bottleneck",
        options=_same("hidden", "dropout", "left", "right", "bottleneck"),
    ),
}


def names() -> list[str]:
    """Every model that can be named, ours first."""
    return [*_OURS, *sorted({e.name for e in entry_points(group=GROUP)} - _OURS.keys())]


def find(name: str) -> Model:
    """Returns the model of that name.

    Raises:
        UserError: No model has that name, or the entry point is not a `Model`.
    """
    if name in _OURS:
        return _OURS[name]
    for entry in entry_points(group=GROUP):
        if entry.name == name:
            try:
                found = entry.load()
            except (ImportError, AttributeError) as error:
                raise UserError(f"model {name!r} ({entry.value}): {error}") from None
            if not isinstance(found, Model):
                raise UserError(f"model {name!r} ({entry.value}) is not a unisono.models.Model")
            return found
    close = difflib.get_close_matches(name, names(), 1)
    hint = f"did you mean {close[0]!r}?" if close else f"choose one of: {', '.join(names())}"
    raise UserError(f"there is no model {name!r}; {hint}")


def build(name: str, **options: Any) -> nn.Module:
    """Builds a model by its name.

    Args:
        name: One of `names()`.
        **options: The keyword arguments of its `build`.

    Raises:
        UserError: No model has that name, or it is too large for this machine.
    """
    try:
        return find(name).build(**options)
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "allocate" not in str(error):
            raise
        raise UserError("the model does not fit into memory: make network.hidden smaller") from None
