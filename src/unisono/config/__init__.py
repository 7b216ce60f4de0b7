"""The configuration of a run."""

from __future__ import annotations

from unisono.config.layers import describe_keys, dump, load
from unisono.config.tables import (
    DEFAULT_RATES,
    FRAMES_AN_UTTERANCE,
    ComputePrecision,
    Config,
    DeviceChoice,
    LinksConfig,
    NetworkConfig,
    ObjectiveChoice,
    OptimizerChoice,
    ScheduleChoice,
    ValidationChoice,
    read_range,
)

__all__ = [
    "DEFAULT_RATES",
    "FRAMES_AN_UTTERANCE",
    "ComputePrecision",
    "Config",
    "DeviceChoice",
    "LinksConfig",
    "NetworkConfig",
    "ObjectiveChoice",
    "OptimizerChoice",
    "ScheduleChoice",
    "ValidationChoice",
    "describe_keys",
    "dump",
    "load",
    "read_range",
]
