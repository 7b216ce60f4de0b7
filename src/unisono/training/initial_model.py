"""`--init RUN`: training that starts from the model of another run."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from unisono.config import Config
from unisono.data import Prep
from unisono.errors import UserError
from unisono.learner.checkpoint_files import DamagedError, check, load, part_names, read_part
from unisono.models import build, find
from unisono.runs.directory import RunDirectory
from unisono.training.builders import open_data, shape_of

Tensors = dict[str, torch.Tensor]


def read_initial(config: Config) -> Tensors:
    """The parameters and buffers that `config.init` names.

    They are the final model of that run, or, where it has not ended, the mean of its learners'
    models in the newest whole checkpoint.

    Raises:
        UserError: there is no such run or no model in it, or the model does not fit this run.
    """
    try:
        run = RunDirectory.open(Path(config.init))
        tensors = _final(run) if run.model.is_file() else _newest(run)
    except UserError as error:
        raise UserError(f"--init: {error}") from None
    _check_fit(config, run, tensors)
    return tensors


def load_initial(model: nn.Module, run: RunDirectory) -> None:
    """Puts the model that a run with ``config.init`` begins with into ``model``.

    Raises:
        UserError: its file is damaged.
    """
    try:
        model.load_state_dict(load_file(run.initial_model))
    except (OSError, SafetensorError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise UserError(
            f"{run.initial_model} is damaged ({reason}): delete it, and --resume reads the model "
            "of --init again"
        ) from None


def _final(run: RunDirectory) -> Tensors:
    try:
        return load_file(run.model)
    except (OSError, SafetensorError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"the model of {run.path} is broken: {reason}") from None


def _newest(run: RunDirectory) -> Tensors:
    loaded = load(run.checkpoints, 0, ("model",))
    if loaded is None:
        raise UserError(f"{run.path} has neither a final model nor a checkpoint")
    try:
        parts = len(part_names(check(loaded.folder)))
        others = [read_part(loaded.folder, number)["model"] for number in range(1, parts)]
    except DamagedError as error:
        raise UserError(f"{loaded.folder}: {error}") from None
    models = [loaded.state["model"], *others]
    return {name: _mean([model[name] for model in models]) for name in models[0]}


def _mean(tensors: list[torch.Tensor]) -> torch.Tensor:
    if len(tensors) == 1 or not tensors[0].is_floating_point():
        return tensors[0]
    return torch.stack(tensors).mean(0)


def _check_fit(config: Config, run: RunDirectory, tensors: Tensors) -> None:
    """Compares names and shapes with those of this run's model, and says what makes them differ."""
    prep = open_data(config)
    wanted = build(config.model, seed=config.seed, **shape_of(config, prep)).state_dict()
    differ = [
        name
        for name in [*wanted, *(tensors.keys() - wanted.keys())]
        if _shape(wanted, name) != _shape(tensors, name)
    ]
    if not differ:
        return
    name = differ[0]
    reason = (
        _other_network(config, run.read_config())
        or _other_data(prep, run.read_config())
        or f"{name} is {_shape(tensors, name)} there and {_shape(wanted, name)} here"
    )
    raise UserError(f"--init: the model of {run.path} does not fit this run: {reason}")


def _shape(tensors: Tensors, name: str) -> str:
    return " x ".join(map(str, tensors[name].shape)) if name in tensors else "missing"


def _other_network(config: Config, other: Config) -> str:
    if other.model != config.model:
        return f"it is a {other.model}, and this run trains a {config.model}"
    for key in ["context", *find(config.model).options.values()]:
        there, here = getattr(other.network, key), getattr(config.network, key)
        if key != "dropout" and there != here:
            return f"network.{key} is {there} there and {here} here"
    return ""


def _other_data(prep: Prep, other: Config) -> str:
    try:
        there = Prep.open(Path(other.prep)).header
    except UserError:  # It may be gone by now.
        return ""
    here = prep.header
    if there.dimension != here.dimension:
        return (
            f"its features have {there.dimension} dimensions, those of {prep.path} {here.dimension}"
        )
    if there.states != here.states:
        return f"its data has {there.states} states, and {prep.path} has {here.states}"
    return ""
