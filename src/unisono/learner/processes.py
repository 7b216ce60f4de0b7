"""A learner of several processes, in a user's own loop: who computes what, and what travels.

Process 0 is the learner. Before each minibatch it tells the others which one it is, and sends its
parameters; each process loads and computes its slice; the gradients are added up at process 0,
whose strategy and optimizer act as ever. So whatever a round, a resumption or a rejoin writes
into the model reaches all processes with the next minibatch.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import FileStore, HashStore  # type: ignore[attr-defined]

from unisono.errors import ProcessLost, UserError
from unisono.fabric import TensorVector
from unisono.learner.checkpointer import Stateful
from unisono.learner.data_feed import DataFeed
from unisono.learner.placement import DIRECTORY, Placement
from unisono.learner.planner import Minibatch
from unisono.learner.process_group import (
    NO_LIMIT,
    PATIENCE,
    GroupBroken,
    ProcessGroup,
    SharedModel,
    is_of_group,
)
from unisono.learner.slices import Slices
from unisono.learner.state_codec import from_bundle, to_bundle
from unisono.strategies.base import StateBundle

START = timedelta(minutes=10)
"""How long the processes of a learner wait for each other at the start."""
_STATES = "states"


@dataclass(frozen=True)
class Turn:
    """What process 0 tells the others before each minibatch, and at the end."""

    minibatch: Minibatch | None
    """None: the loop is over."""
    finished: bool
    """At the end: whether everything is trained."""
    ahead: list[int]
    """Positions that will be loaded soon, in this order."""
    forget: bool
    """Whether those of earlier turns will not be loaded any more."""
    seed: int
    """Of what the others draw at random, as for dropout."""
    scales: list[float]
    """Of each GradScaler."""
    restarted: bool
    """Whether the optimizers of process 0 begin with new state."""


@dataclass(frozen=True)
class Shape:
    """A vector that process 0 is about to send."""

    name: str
    count: int
    dtype: str


@dataclass(frozen=True)
class Shapes:
    """Of all that it is about to send."""

    shapes: list[Shape]


class Processes:
    """The processes of a learner, seen from one of them; there may be this one only.

    Raises:
        UserError: the others are not there, or there is a default process group already.
    """

    def __init__(
        self,
        placement: Placement,
        model: nn.Module,
        extra_state: Mapping[str, Stateful],
        *,
        split: bool,
    ) -> None:
        self.slices = Slices.from_environment(split=split)
        self._name = f"learner {placement.number}"
        self._model = model
        self._extra_state = extra_state
        scalers = (s for s in extra_state.values() if isinstance(s, torch.amp.GradScaler))
        self._scalers = [scaler for scaler in scalers if scaler.is_enabled()]
        self._ahead: deque[int] = deque()
        self._forget = False
        self._weight = 1.0
        self._is_alone = False
        """Whether there is a process group of this process alone."""
        self._joined: tuple[ProcessGroup, SharedModel] | None = None
        if self.slices.size > 1:
            group = self._meet(placement)
            self._joined = group, SharedModel(model, group)

    def _meet(self, placement: Placement) -> ProcessGroup:
        rank, size = self.slices.rank, self.slices.size
        self._refuse_another()
        path = os.path.join(os.environ[DIRECTORY], f"processes-{placement.number}")
        store = FileStore(path, size)
        store.set(f"here-{rank}", "")
        try:
            store.wait([f"here-{other}" for other in range(size)], START)
        except RuntimeError:
            raise UserError(
                f"process {rank} of {self._name} has waited {START.total_seconds():g} s for the "
                "others: each of them must make a unisono.Learner"
            ) from None
        limit = timedelta(seconds=PATIENCE * placement.timeout) if rank == 0 else NO_LIMIT
        device = next(self._model.parameters()).device
        try:
            return ProcessGroup(store, rank, size, device, limit)
        except GroupBroken as broken:
            raise self._lost(broken) from None

    @property
    def process_group(self) -> Any:
        """Of torch; of one process it is made now."""
        if self.slices.size == 1 and not self._is_alone:
            self._refuse_another()
            store = HashStore()
            dist.init_process_group("gloo", store=store, rank=0, world_size=1)
            self._is_alone = True
        return dist.group.WORLD

    def _refuse_another(self) -> None:
        if dist.is_initialized():
            raise UserError(
                "there is a default process group already: leave init_process_group out, and use "
                "learner.process_group, of the learner's processes"
            )

    def reason(self, error: BaseException | None) -> BaseException | None:
        """What the error means that ended the loop: it may be the end of another process."""
        if self._joined is None or error is None:
            return error
        if isinstance(error, GroupBroken) or is_of_group(error):
            return self._lost(error)
        return error

    def _lost(self, error: BaseException) -> ProcessLost:
        why = str(error).partition("\n")[0].partition(". ")[0]
        why = why.partition("] ")[2] if why.startswith("[") else why  # without gloo's source file
        return ProcessLost(
            f"process {self.slices.rank} of {self._name} cannot reach the others ({why})"
        )

    # Every process, with each minibatch.

    def share_of(self, loss: Tensor) -> Tensor:
        """The loss, the mean over this process' slice, as its share of that of the minibatch.

        At process 0 its value is the loss of the minibatch: the sum of these shares.
        """
        if self._joined is None:
            return loss
        own = loss * self._weight
        total = own.detach().clone()
        self._joined[0].add_up([total])
        return own + (total - own.detach())

    def add_up(self) -> None:
        """Process 0 gets the gradients of the minibatch; those of the others become 0."""
        if self._joined is None:
            return
        self._joined[1].add_up(self._weight)
        if self.slices.rank > 0:
            for parameter in self._model.parameters():
                if parameter.grad is not None:
                    parameter.grad.detach().zero_()

    # Process 0.

    def announcing(self, feed: DataFeed) -> Callable[[Minibatch], None]:
        """``feed.announce``, for all processes."""
        if self._joined is None:
            return feed.announce

        def announce(minibatch: Minibatch) -> None:
            feed.announce(minibatch)
            self._ahead.append(minibatch.position)

        return announce

    def forget(self) -> None:
        """What was announced will not be loaded."""
        self._ahead.clear()
        self._forget = True

    def tell_state(self) -> None:
        """Sends the state of ``extra_state``, which was read from a checkpoint."""
        if self._joined is None:
            return
        states = {name: thing.state_dict() for name, thing in self._extra_state.items()}
        vectors = to_bundle(_STATES, states).vectors
        tensors = {name: v.tensor for name, v in vectors.items() if isinstance(v, TensorVector)}
        group = self._joined[0]
        shapes = [Shape(n, len(t), str(t.dtype).removeprefix("torch.")) for n, t in tensors.items()]
        group.announce(Shapes(shapes))
        group.share(list(tensors.values()))

    def tell(
        self,
        feed: DataFeed,
        minibatch: Minibatch | None,
        *,
        finished: bool = False,
        restarted: bool = False,
    ) -> None:
        """The next minibatch, or the end of the loop."""
        if self._joined is None:
            return
        group, shared = self._joined
        forget, self._forget = self._forget, False
        ahead = [self._ahead.popleft() for _ in range(len(self._ahead))]
        turn = Turn(
            minibatch=None if minibatch is None else minibatch._replace(end=None),
            finished=finished,
            ahead=ahead,
            forget=forget,
            seed=0 if minibatch is None else int(torch.randint(2**31, ())),
            scales=[scaler.get_scale() for scaler in self._scalers],
            restarted=restarted,
        )
        group.announce(turn)
        if minibatch is not None:
            shared.share()
            self._weigh(feed, minibatch)

    # The others.

    def hear_state(self) -> None:
        """The inverse of ``tell_state``."""
        assert self._joined is not None
        group = self._joined[0]
        bundle = StateBundle()
        tensors = []
        for shape in group.hear(Shapes).shapes:
            tensors.append(torch.empty(shape.count, dtype=getattr(torch, shape.dtype)))
            bundle.vectors[shape.name] = TensorVector(tensors[-1])
        group.share(tensors)
        for name, state in from_bundle(_STATES, bundle).items():
            self._extra_state[name].load_state_dict(state)

    def hear(self, feed: DataFeed) -> Turn:
        """What process 0 tells, once the model has its parameters."""
        assert self._joined is not None
        group, shared = self._joined
        turn = group.hear(Turn)
        if turn.forget:
            feed.forget()
        for position in turn.ahead:
            feed.announce(Minibatch(position))
        if turn.minibatch is not None:
            shared.share()
            self._weigh(feed, turn.minibatch)
            torch.manual_seed(turn.seed + self.slices.rank)
            for scaler, scale in zip(self._scalers, turn.scales, strict=True):
                scaler.load_state_dict({**scaler.state_dict(), "scale": scale})
        return turn

    def _weigh(self, feed: DataFeed, minibatch: Minibatch) -> None:
        if self.slices.split:
            self._weight = self.slices.weight(len(feed.positions.indices(minibatch.position)))
