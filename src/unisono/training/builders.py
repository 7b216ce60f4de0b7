"""What a configuration and its data make of a model, and what that model is fed with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from unisono.config import Config, ValidationChoice
from unisono.data import ChunkSource, FrameSource, Part, Prep
from unisono.errors import UserError
from unisono.strategies.base import Strategy
from unisono.strategies.registry import make
from unisono.training.kaldi.recipe import dropout_of

FRAME_MODEL = "dnn"
"""The one that classifies frames one by one; the others take chunks."""


def open_data(config: Config) -> Prep:
    """Opens the prepared data; where nothing is checked, all speakers are for training.

    Raises:
        UserError: there is none, or it is broken.
    """
    prep = Prep.open(Path(config.prep))
    return prep if config.validation.on is ValidationChoice.HELDOUT else prep.joined()


def shape_of(config: Config, prep: Prep) -> dict[str, Any]:
    """Returns the options of the model's class, but for its seed."""
    network, dimension = config.network, prep.header.dimension
    schedule = dropout_of(config)
    shape: dict[str, Any] = {
        "inputs": dimension,
        "outputs": prep.header.states,
        "hidden": network.hidden,
        "dropout": network.dropout if schedule is None else schedule.most,
    }
    if config.model == "tdnn":
        return {**shape, "steps": network.steps, "batch_norm": network.batch_norm}
    if config.model in ("lstm", "blstm"):
        if network.batch_norm:
            raise UserError(f"network.batch_norm is for dnn and tdnn, not for {config.model}")
        if config.model == "lstm":
            sides = {"left": network.left, "right": network.delay}
            return {**shape, **sides, "projection": network.projection}
        sides = {"left": network.left, "right": network.right}
        return {**shape, **sides, "bottleneck": network.bottleneck}
    shape["inputs"] = (2 * network.context + 1) * dimension
    return {**shape, "batch_norm": network.batch_norm}


def source_of(
    config: Config, prep: Prep, part: Part, model: nn.Module, device: torch.device | None
) -> FrameSource | ChunkSource:
    """Returns the examples that a model is trained on: frames with context, or chunks."""
    network = config.network
    if config.model == FRAME_MODEL:
        return FrameSource(prep, part, context=network.context, device=device)
    left, right = int(model.left), int(model.right)  # type: ignore[arg-type]
    return ChunkSource(prep, part, chunk=network.chunk, left=left, right=right, device=device)


def examples_in(config: Config, frames: int) -> int:
    """Returns how many examples so many frames are, at least 1; 0 stays 0.

    Keys of the configuration count frames, so that they mean the same for every model; an
    example of a chunk model has `network.chunk` of them.
    """
    if config.model == FRAME_MODEL or frames == 0:
        return frames
    return max(1, frames // config.network.chunk)


def strategy_of(config: Config) -> Strategy:
    """Returns the strategy, its pace in examples."""
    strategy = make(config.strategy_name, config.strategy_options)
    return strategy if config.model == FRAME_MODEL else strategy.in_chunks_of(config.network.chunk)
