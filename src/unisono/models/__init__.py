"""Acoustic models, each by its name. They need torch and no other part of Unisono."""

from __future__ import annotations

from unisono.models.aligned_linear import AlignedLinear
from unisono.models.dnn import DNN
from unisono.models.lstm import BLSTM, LSTM
from unisono.models.registry import Model, Takes, build, find, names
from unisono.models.tdnn import TDNN

__all__ = [
    "BLSTM",
    "DNN",
    "LSTM",
    "TDNN",
    "AlignedLinear",
    "Model",
    "Takes",
    "build",
    "find",
    "names",
]
