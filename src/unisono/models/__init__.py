"""Acoustic models, each by its name. They need torch and nothing else of the house."""

from __future__ import annotations

from typing import Any

from torch import nn

from unisono.errors import UserError
from unisono.models.dnn import DNN
from unisono.models.lstm import BLSTM, LSTM
from unisono.models.tdnn import TDNN

__all__ = ["BLSTM", "DNN", "LSTM", "MODELS", "TDNN", "build"]

MODELS: dict[str, type[nn.Module]] = {"dnn": DNN, "tdnn": TDNN, "lstm": LSTM, "blstm": BLSTM}


def build(name: str, **options: Any) -> nn.Module:
    """Builds a model by its name.

    Args:
        name: a key of `MODELS`.
        **options: the keyword arguments of that model's class.

    Raises:
        UserError: no model has that name.
    """
    if name not in MODELS:
        raise UserError(f"there is no model '{name}'; choose one of: {', '.join(sorted(MODELS))}")
    return MODELS[name](**options)
