"""``unisono.Learner`` in the processes of a learner other than process 0."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from unisono.errors import UserError
from unisono.learner.arguments import check_inside, chosen_optimizers
from unisono.learner.data_feed import DataFeed
from unisono.learner.learner import Learner
from unisono.learner.optimizers import Optimizers
from unisono.learner.planner import Minibatch
from unisono.learner.progress import Progress


class HelperProcess(Learner):
    """Computes slices, in the same loop as process 0; everything else is that one's.

    Its optimizers take no steps: the parameters come with each minibatch.
    """

    def __init__(self, model: nn.Module, optimizer: Any, *rest: Any, **options: Any) -> None:
        super().__init__(model, optimizer, *rest, **{**options, "log": None})
        optimizers = chosen_optimizers(model, optimizer)
        self._optimizers = Optimizers(optimizers, self._before_update, lambda: None)
        self._is_stale = False
        """Whether process 0 has changed the parameters since it sent them."""

    def _before_update(self) -> bool:
        self._is_stale = True
        return False

    def backward(self, loss: torch.Tensor, *, accumulate: bool = False) -> None:
        """As in process 0, to which the gradients go."""
        if self._is_stale:
            raise UserError(
                "backward after optimizer.step() on the same minibatch: the processes of a learner "
                "share parameters once a minibatch; take one step on each, or use one process"
            )
        torch.autograd.backward(self._processes.share_of(loss))
        self._processes.add_up()

    def stop(self) -> None:
        """Process 0 stops the run."""

    def every(self, *, examples: int) -> bool:
        """True in process 0 only."""
        return False

    def _minibatches(self, feed: DataFeed) -> Iterator[tuple[Minibatch, Any]]:
        progress = self._progress = Progress(feed.positions)
        if self._resume and self._checkpoints is not None:
            self._processes.hear_state()
        while True:
            check_inside(self._inside)
            turn = self._processes.hear(feed)
            if turn.minibatch is None:
                break
            if turn.restarted:
                self._optimizers.restart()
            if self._optimizers.half_done:
                self._optimizers.finish_update()
            self._is_stale = False
            yield turn.minibatch, feed.load(turn.minibatch)
        if turn.finished:
            progress.finish()
