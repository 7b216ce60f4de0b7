"""In what numbers models travel, where the user does not say: by where the learners are."""

from __future__ import annotations

from pathlib import Path

from unisono.config import Config
from unisono.fabric import Precision
from unisono.runs.directory import RunDirectory
from unisono.strategies.averaging import Averaging
from unisono.strategies.base import Sharding
from unisono.strategies.registry import make
from unisono.training.resumption import as_decided

BETWEEN_HOSTS = Precision.INT8
"""A quarter of the bytes, and what is rounded off is sent with the next round."""


def decide_link_precision(
    config: Config, out: Path, *, resume: bool, several_hosts: bool
) -> Config:
    """Decides when a run begins; one that goes on keeps what it has decided, wherever it is now."""
    if resume and RunDirectory(out).config.is_file():
        return as_decided(config, RunDirectory(out).read_config())
    return with_link_precision(config, several_hosts=several_hosts)


def with_link_precision(config: Config, *, several_hosts: bool) -> Config:
    """The configuration of a new run, with `strategy.precision` decided.

    Averages between hosts travel in ``int8``. Static sharding stays in float32: there the same seed
    gives the same bytes, wherever the learners are. What is decided is in the run's configuration,
    and holds when other hosts join.
    """
    strategy = make(config.strategy_name, config.strategy_options)
    averages = isinstance(strategy, Averaging) and strategy.sharding is Sharding.DYNAMIC
    if not several_hosts or not averages or "precision" in config.strategy_options:
        return config
    options = {**config.strategy, "precision": BETWEEN_HOSTS.value}
    return config.model_copy(update={"strategy": options})
