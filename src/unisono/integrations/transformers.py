"""The Trainer of Hugging Face transformers, as a learner of a run."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader
from transformers import Trainer

from unisono.errors import UserError
from unisono.learner.learner import Learner
from unisono.strategies.base import Strategy


class UnisonoTrainer(Trainer):  # type: ignore[misc]
    """A ``transformers.Trainer`` whose learners share what they learn.

    A script that calls ``train()`` becomes a run of several learners with ``unisono launch
    --learners N script.py``. Each learner takes the minibatches that the pool hands it, so the
    steps that one of them counts are a part of all. The learning rate follows the progress of the
    run. Evaluation is learner 0's, on the consensus. After training the leader's model is the
    consensus, and ``save_model`` writes on the leader alone.

    What Trainer does by counting its own steps it cannot do here, and is refused: accumulation of
    gradients, ``max_steps``, and checkpoints of its own (use ``checkpoints`` and ``resume``).

    Args:
        strategy: How learners share what they learn, as for ``unisono.Learner``.
        checkpoints: A directory for the run's checkpoints.
        resume: Go on from the newest whole checkpoint, if there is one.
        arguments: Those of ``transformers.Trainer``.
    """

    def __init__(
        self,
        *arguments: Any,
        strategy: str | Strategy | None = None,
        checkpoints: Path | str | None = None,
        resume: bool = False,
        **more: Any,
    ) -> None:
        super().__init__(*arguments, **more)
        _check(self.args)
        self._strategy = strategy
        self._checkpoints = checkpoints
        self._resume = resume
        self.learner: Learner | None = None
        self.is_leader = False
        """After ``train``: true on the one learner that should save the model."""

    def train(self, *arguments: Any, **more: Any) -> Any:
        """Trains until all epochs are trained, whoever trains them."""
        if more.get("resume_from_checkpoint") or (arguments and arguments[0]):
            raise UserError("resume_from_checkpoint is Trainer's own: use checkpoints and resume")
        self.create_optimizer()
        epochs, self.args.num_train_epochs = self.args.num_train_epochs, 1.0
        try:
            with Learner(
                self.model,
                self.optimizer,
                self._strategy,
                seed=self.args.seed,
                checkpoints=self._checkpoints,
                resume=self._resume,
            ) as learner:
                self.learner = learner
                self._minibatches = _Minibatches(learner, self._loader(), math.ceil(epochs))
                self.accelerator.backward = self._backward
                result = super().train(*arguments, **more)
                self.is_leader = learner.is_leader
                if self.is_leader:
                    with learner.consensus() as model:
                        consensus = {k: v.detach().clone() for k, v in model.state_dict().items()}
            if self.is_leader:
                self.model.load_state_dict(consensus)
            return result
        finally:
            self.args.num_train_epochs = epochs
            self.learner = None
            self.accelerator.__dict__.pop("backward", None)  # its own again

    def get_train_dataloader(self) -> Any:
        """The minibatches that this learner is handed."""
        return super().get_train_dataloader() if self.learner is None else self._minibatches

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """A schedule by the run's progress: ``num_training_steps`` are those of all learners."""
        scheduler = super().create_scheduler(num_training_steps, optimizer)
        if self.learner is None:
            return scheduler
        if not isinstance(scheduler, LambdaLR):
            raise UserError(
                f"lr_scheduler_type {self.args.lr_scheduler_type}: only schedules by step can "
                "follow the progress of a run"
            )
        step = scheduler.step

        def follow(epoch: int | None = None) -> None:
            if self.learner is not None:
                scheduler.last_epoch = round(self.learner.progress * num_training_steps) - 1
            step()

        scheduler.step = follow  # type: ignore[method-assign]
        return scheduler

    def save_model(self, *arguments: Any, **more: Any) -> None:
        """Writes the model, on the leader alone; where nothing was trained, as ever."""
        if self.is_leader or not hasattr(self, "_minibatches"):
            super().save_model(*arguments, **more)

    def _loader(self) -> DataLoader[Any]:
        """Trainer's own, without what it does to divide the data."""
        prepared = super().get_train_dataloader()
        return DataLoader(
            prepared.dataset,
            batch_size=self._train_batch_size,
            shuffle=True,
            collate_fn=prepared.collate_fn,
            num_workers=self.args.dataloader_num_workers,
            drop_last=self.args.dataloader_drop_last,
        )

    def _backward(self, loss: torch.Tensor, **_: Any) -> None:
        assert self.learner is not None
        scaler = self.accelerator.scaler
        self.learner.backward(loss if scaler is None else scaler.scale(loss))

    def _evaluate(self, *arguments: Any, **more: Any) -> Any:
        if self.learner is not None and self.learner.number != 0:
            return {}
        with nullcontext() if self.learner is None else self.learner.consensus():
            return super()._evaluate(*arguments, **more)


class _Minibatches:
    """What ``draw`` gives, as much of a DataLoader as Trainer looks at: one pass for all epochs."""

    def __init__(self, learner: Learner, loader: DataLoader[Any], epochs: int) -> None:
        self._learner = learner
        self._loader = loader
        self._epochs = epochs
        self.dataset = loader.dataset

    def __len__(self) -> int:
        """Of all learners together: this one may get any of them."""
        return self._epochs * len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._learner.draw(self._loader, epochs=self._epochs))


def _check(arguments: Any) -> None:
    refused = {
        "gradient_accumulation_steps": arguments.gradient_accumulation_steps != 1,
        "max_steps": arguments.max_steps > 0,
        "save_strategy": str(arguments.save_strategy.value) != "no",
        "load_best_model_at_end": arguments.load_best_model_at_end,
        "metric_for_best_model": bool(arguments.metric_for_best_model),
    }
    for name, is_set in refused.items():
        if is_set:
            wanted = {"gradient_accumulation_steps": "1", "save_strategy": '"no"'}.get(
                name, "unset"
            )
            raise UserError(f"UnisonoTrainer: TrainingArguments.{name} must be {wanted}")
    if arguments.world_size > 1:
        raise UserError(
            "UnisonoTrainer: start the script with unisono launch, and not with torchrun"
        )
