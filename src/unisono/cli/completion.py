"""What a shell completes beyond options and files: names and keys."""

from __future__ import annotations

from collections.abc import Iterable

from unisono import models
from unisono.config import OptimizerChoice, describe_keys
from unisono.strategies import registry


def strategies(incomplete: str) -> list[str]:
    """Names of strategies."""
    return _beginning_with(incomplete, registry.names())


def strategy_lists(incomplete: str) -> list[str]:
    """The same after the last comma."""
    before, comma, _ = incomplete.rpartition(",")
    return _beginning_with(incomplete, (f"{before}{comma}{name}" for name in registry.names()))


def model_names(incomplete: str) -> list[str]:
    """Names of models."""
    return _beginning_with(incomplete, models.names())


def optimizers(incomplete: str) -> list[str]:
    """Names of optimizers."""
    return _beginning_with(incomplete, (choice.value for choice in OptimizerChoice))


def keys(incomplete: str) -> list[str]:
    """Keys of config.toml, up to the value."""
    return _beginning_with(incomplete, (f"{key}=" for key, _, _ in describe_keys()))


def _beginning_with(incomplete: str, words: Iterable[str]) -> list[str]:
    return [word for word in words if word.startswith(incomplete)]
