"""What may differ between a run and its resumption."""

from __future__ import annotations

from typing import Any

from unisono.config import Config
from unisono.errors import UserError
from unisono.learner.checkpoint_files import checkpoints
from unisono.runs.directory import RunDirectory
from unisono.strategies.every import AUTO

FREE = (
    "prep", "learners", "processes_per_learner", "cluster", "epochs", "threads", "device",
    "timeout_s", "respawn",
    "tracking", "prefetch", "rate.start", "rate.schedule", "rate.end", "rate.warmup", "rate.factor",
    "rate.retries", "validation", "checkpoint", "links",
)  # fmt: skip
"""Keys, and tables, that a resumption may change; the others are in the state of the run."""


def as_decided(config: Config, before: Config) -> Config:
    """The configuration with what the run has decided by itself, where that is not given.

    A run writes it into its own ``config.toml``, and not into the file that it was begun with:
    the numbers in which models travel, the pace of rounds, and the factor of the learning rate
    after a divergence.
    """
    rate, strategy, decided = config.rate, dict(config.strategy), before.strategy_options
    if "factor" not in rate.model_fields_set:
        rate = rate.model_copy(update={"factor": before.rate.factor})
    if before.strategy_name == config.strategy_name:
        if "precision" in decided:
            strategy.setdefault("precision", decided["precision"])
        if isinstance(decided.get("every"), str) and strategy.get("every", AUTO) == AUTO:
            strategy["every"] = decided["every"]
    return config.model_copy(update={"rate": rate, "strategy": strategy})


def check_resumable(run: RunDirectory, config: Config) -> None:
    """Compares a run that was trained with what it is to go on with.

    Raises:
        UserError: a setting differs that is part of its state, or it is finished and has no
            checkpoint, so that it would begin anew and lose its model.
    """
    has_checkpoint = bool(checkpoints(run.checkpoints))
    if not run.config.is_file() or not (has_checkpoint or run.model.is_file()):
        return
    _check_settings(run, config)
    if not has_checkpoint and run.summary.is_file():
        raise UserError(
            f"{run.path} is finished, and has no checkpoint to go on from: name another --out, "
            f"with --init {run.path} to begin with its model"
        )


def _check_settings(run: RunDirectory, config: Config) -> None:
    before, now = _plain(run.read_config()), _plain(config)
    for key in sorted(before.keys() | now.keys()):
        free = any(key == name or key.startswith(f"{name}.") for name in FREE)
        if not free and before.get(key) != now.get(key):
            raise UserError(
                f"{run.path} was trained with {key} = {before.get(key)}; --resume cannot change it "
                f"to {now.get(key)}: leave it as it was, or begin a new run with another --out"
            )


def _plain(config: Config) -> dict[str, Any]:
    """All values by key, with a dot between table and key; the strategy's default filled in."""
    strategy = {**config.strategy_options, "name": config.strategy_name}
    values = {**config.model_dump(mode="json"), "strategy": strategy}
    flat: dict[str, Any] = {}

    def lay(prefix: str, table: dict[str, Any]) -> None:
        for key, value in table.items():
            if isinstance(value, dict):
                lay(f"{prefix}{key}.", value)
            else:
                flat[prefix + key] = value

    lay("", values)
    return flat
