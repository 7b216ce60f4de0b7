"""Trackers for Weights & Biases and MLflow, to copy into a package of your own.

In its pyproject.toml:

    [project.entry-points."unisono.trackers"]
    wandb = "my_package.trackers:WandB"
    mlflow = "my_package.trackers:MLflow"

Then `unisono train PREP --set tracking=wandb`.
"""

from __future__ import annotations

from typing import Any

from unisono.runs.directory import RunDirectory


class WandB:
    """Weights & Biases, https://docs.wandb.ai."""

    def __init__(self, run: RunDirectory) -> None:
        import wandb

        config = run.read_config().model_dump(mode="json")
        self._run: Any = wandb.init(project="unisono", name=run.path.name, config=config)

    def scalar(self, name: str, value: float, step: int) -> None:
        """Logs it; steps of learners may come out of order, so the axis is a figure of its own."""
        self._run.log({name: value, "examples": step})

    def close(self) -> None:
        """Uploads the rest."""
        self._run.finish()


class MLflow:
    """MLflow, https://mlflow.org."""

    def __init__(self, run: RunDirectory) -> None:
        import mlflow

        self._mlflow: Any = mlflow
        mlflow.start_run(run_name=run.path.name)
        mlflow.log_dict(run.read_config().model_dump(mode="json"), "config.json")

    def scalar(self, name: str, value: float, step: int) -> None:
        """Logs it."""
        self._mlflow.log_metric(name, value, step=step)

    def close(self) -> None:
        """Ends the run there."""
        self._mlflow.end_run()
