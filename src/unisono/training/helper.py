"""A helper, a further process of a learner: ``python -m unisono.training.helper RUN ...``."""

from __future__ import annotations

import argparse
import os
from collections import defaultdict
from pathlib import Path

import torch
from torch import nn

from unisono.config import OptimizerChoice
from unisono.fabric.local.forked import name_process
from unisono.launch.exit_codes import exit_on_error
from unisono.learner.process_group import NO_LIMIT, GroupBroken, SharedModel
from unisono.learner.uncaught import say_once
from unisono.models import build
from unisono.optim import NaturalGradientSGD
from unisono.output import go_on_without_output
from unisono.runs.directory import RunDirectory
from unisono.training.builders import choose_device, make_optimizer, open_data, shape_of
from unisono.training.inner_group import InnerGroup, Step, slice_loss
from unisono.training.objective import objective_of
from unisono.training.precision import choose_precision
from unisono.verbosity import log_to_terminal


class Helper:
    """Computes the gradient of its slice of each minibatch, with the parameters it gets with it.

    It has no parameters and no optimizer of its own: nothing of it is in a checkpoint, and nothing
    that a strategy does to the model concerns it. With ``ng-sgd`` it preconditions the gradient of
    its slice with Fisher estimates from its own slices.
    """

    def __init__(self, run: RunDirectory, store: Path, rank: int, place: int) -> None:
        config = run.read_config()
        size = config.processes_per_learner
        self._device = choose_device(config, place)
        self._objective = objective_of(config)
        shape = shape_of(config, open_data(config))
        self._model = build(config.model, seed=config.seed, **shape).to(self._device)
        self._precision = choose_precision(config.precision, self._device, self._model)
        self._dropouts = dropouts_of(self._model)
        self._optimizer: NaturalGradientSGD | None = None
        if config.chosen_optimizer is OptimizerChoice.NG_SGD:
            optimizer = make_optimizer(config, self._model, 0.0)
            assert isinstance(optimizer, NaturalGradientSGD)
            self._optimizer = optimizer
        (store.parent / ready(rank)).touch()
        self._group = InnerGroup(store, rank, size, self._device, NO_LIMIT)
        self._shared = SharedModel(self._model, self._group)

    def serve(self) -> None:
        """Computes until process 0 ends it; returns when process 0 is gone."""
        while True:
            try:
                self._compute(self._group.hear(Step))
            except GroupBroken:
                return

    def _compute(self, step: Step) -> None:
        rank = self._group.rank
        rows = step.rows[rank]
        self._shared.share()
        x = self._group.receive_slice((rows, *step.inputs), torch.float32)
        targets = self._group.receive_slice((rows, *step.targets), torch.int64)
        torch.manual_seed(step.seed + rank)
        for layer, share in zip(self._dropouts, step.dropout, strict=True):
            layer.p = share
        if step.restarted and self._optimizer is not None:
            self._optimizer.state = defaultdict(dict)
        loss = torch.zeros((), device=self._device)
        if rows:
            loss = slice_loss(
                self._objective, self._model, x, targets, step.frames, self._precision
            )
        self._group.add_up([loss.clone()])
        if rows:
            torch.autograd.backward(loss)
        self._shared.add_up(step.weight(rank))
        self._model.zero_grad()
        if self._optimizer is not None:
            self._optimizer.step()  # without gradients it ends the step of the estimates alone


def dropouts_of(model: nn.Module) -> list[nn.Dropout]:
    """The layers whose share a schedule may change."""
    return [module for module in model.modules() if isinstance(module, nn.Dropout)]


def ready(rank: int) -> str:
    """The file beside the store that says that a helper is about to join."""
    return f"ready-{rank}"


def main() -> None:
    """Runs as a process of its own; errors are one line where they can be."""
    parser = argparse.ArgumentParser()
    parser.add_argument("run", type=Path)
    parser.add_argument("store", type=Path)
    parser.add_argument("learner", type=int)
    parser.add_argument("rank", type=int)
    parser.add_argument("place", type=int)
    parser.add_argument("threads", type=int)
    options = parser.parse_args()
    name_process(f"learner {options.learner}.{options.rank}")
    go_on_without_output(say_once)
    log_to_terminal()
    torch.set_num_threads(options.threads)
    with exit_on_error():
        run = RunDirectory.open(options.run)
        Helper(run, options.store, options.rank, options.place).serve()
    os._exit(0)  # freeing a group whose process 0 is gone may wait for it


if __name__ == "__main__":
    main()
