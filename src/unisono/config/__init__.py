"""The configuration of a run."""

from __future__ import annotations

from unisono.config.layers import describe_keys, dump, load
from unisono.config.tables import (
    DEFAULT_RATES,
    ComputePrecision,
    Config,
    DeviceChoice,
    LinksConfig,
    NetworkConfig,
    OptimizerChoice,
    ScheduleChoice,
    ValidationChoice,
    read_range,
)

__all__ = [
    "DEFAULT_RATES",
    "ComputePrecision",
    "Config",
    "DeviceChoice",
    "LinksConfig",
    "NetworkConfig",
    "OptimizerChoice",
    "ScheduleChoice",
    "ValidationChoice",
    "describe_keys",
    "dump",
    "load",
    "read_range",
]
