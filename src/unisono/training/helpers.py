"""A super-learner's process 0: it is the learner, and has helpers compute its minibatches with it.

Coordinator, strategy, leases, checkpoints and optimizer know process 0 alone. In each step it sends
the helpers its parameters and their slices of the minibatch, and gets the sum of all gradients:

    broadcast parameters -> forward and backward of a slice each -> reduce gradients -> strategy

The two together move as many bytes as an all-reduce of the gradients would, and whatever the
strategy, a roll-back or a checkpoint has written into the parameters is in the next step of all.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from datetime import timedelta
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from unisono.config import ComputePrecision, Config
from unisono.errors import ProcessLost, UserError
from unisono.fabric.local.child_processes import ChildExit, ChildProcesses
from unisono.learner.placement import DIRECTORY
from unisono.learner.process_group import PATIENCE, GroupBroken, SharedModel
from unisono.runs.directory import RunDirectory
from unisono.training import helper
from unisono.training.builders import choose_device, examples_in
from unisono.training.inner_group import InnerGroup, Step, slice_loss, slice_rows
from unisono.training.objective import objective_of

START_S = 300.0
"""Seconds that a helper has to start."""
_LOOK_S = 0.05
_GRACE_S = 4.0


def check_processes(config: Config) -> None:
    """Refuses learners of several processes where they cannot be had.

    Raises:
        UserError: on a cluster, on too few GPUs, or for minibatches that cannot be sliced.
    """
    size = config.processes_per_learner
    if size == 1:
        return
    if config.cluster:
        raise UserError(
            "--processes-per-learner does not work on Ray clusters: start the run without "
            "--cluster, or with one process per learner"
        )
    examples = examples_in(config, config.minibatch)
    if examples < 2 * size:
        raise UserError(
            f"{size} processes per learner need minibatches of {2 * size} examples or more, and "
            f"minibatch={config.minibatch} has {examples}: use fewer processes"
        )
    found = torch.cuda.device_count()
    if choose_device(config, 0).type == "cuda" and found < size:
        raise UserError(
            f"{size} processes per learner need a GPU each, and torch finds {found}: use fewer, or "
            "--set device=cpu"
        )


class Helpers:
    """The further processes of a learner, started and ended with it.

    The kernel kills a helper when process 0 dies, however that happens.

    Args:
        run: the run.
        learner: the number of the learner.
        place: that of process 0 among the processes of its machine; helpers have the next ones.
    """

    def __init__(self, run: RunDirectory, learner: int, place: int) -> None:
        config = run.read_config()
        self._learner = learner
        self._objective = objective_of(config)
        self._size = config.processes_per_learner
        self._timeout = timedelta(seconds=PATIENCE * config.timeout_s)
        try:
            # In the launcher's folder nothing is left behind by a process 0 that is killed.
            folder = tempfile.mkdtemp(prefix="unisono-", dir=os.environ.get(DIRECTORY))
        except OSError as error:
            raise UserError(f"no temporary directory can be made: {error.strerror}") from None
        self._folder = Path(folder)
        self._group: InnerGroup | None = None
        self._children = ChildProcesses()
        command = [sys.executable, "-m", helper.__name__, str(run.path), str(self._store)]
        threads = torch.get_num_threads()
        fork = threads == 1 and not torch.cuda.is_available()
        for rank in range(1, self._size):
            numbers = [str(number) for number in (learner, rank, place + rank, threads)]
            self._children.start(self._name(rank), [*command, *numbers], {}, fork=fork)

    def join(self, model: nn.Module, device: torch.device, precision: ComputePrecision) -> None:
        """Waits for the helpers, and meets them in a process group.

        Raises:
            UserError: a helper cannot start.
            ProcessLost: a helper was killed.
        """
        self._model, self._precision = model, precision
        self._dropouts = helper.dropouts_of(model)
        self._await_start()
        try:
            self._group = InnerGroup(self._store, 0, self._size, device, self._timeout)
        except GroupBroken as broken:
            raise self._reason(broken) from None
        self._shared = SharedModel(model, self._group)

    def loss(self, x: Tensor, targets: Tensor, optimizer: Optimizer) -> Tensor:
        """The mean loss of a minibatch, whose backward pass is that of this process' slice.

        Each call is followed by one of ``reduce``.

        Raises:
            ProcessLost: a helper was killed.
        """
        step = Step(
            rows=slice_rows(len(x), self._size),
            frames=self._objective.frames(targets),
            inputs=tuple(x.shape[1:]),
            targets=tuple(targets.shape[1:]),
            seed=int(torch.randint(2**31, ())),
            dropout=tuple(layer.p for layer in self._dropouts),
            restarted=not optimizer.state,
        )
        self._weight = step.weight(0)
        group = self._group
        assert group is not None
        try:
            group.announce(step)
            self._shared.share()
            own_x = group.send_slices(x, step.rows)
            own_targets = group.send_slices(targets, step.rows)
            own = slice_loss(
                self._objective, self._model, own_x, own_targets, step.frames, self._precision
            )
            total = own.detach().clone()
            group.add_up([total])
        except GroupBroken as broken:
            raise self._reason(broken) from None
        return own + (total - own.detach())

    def reduce(self) -> None:
        """Adds the gradients of the helpers to those of this process.

        Raises:
            ProcessLost: a helper was killed.
        """
        try:
            self._shared.add_up(self._weight)
        except GroupBroken as broken:
            raise self._reason(broken) from None

    def close(self) -> None:
        """Ends the helpers; they have nothing that would have to be kept."""
        self._children.stop(_GRACE_S)
        if self._group is not None:
            self._group.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def _store(self) -> Path:
        return self._folder / "store"

    def _await_start(self) -> None:
        deadline = self._children.now() + START_S
        for rank in range(1, self._size):
            while not (self._folder / helper.ready(rank)).exists():
                self._check(self._children.wait(_LOOK_S))
                if self._children.now() > deadline:
                    raise UserError(f"{self._name(rank)} did not start within {START_S:.0f} s")

    def _name(self, rank: int) -> str:
        return f"process {rank} of learner {self._learner}"

    def _reason(self, broken: GroupBroken) -> UserError:
        """Why the group is broken; it is not closed, which might wait for what is under way."""
        self._group = None
        deadline = self._children.now() + _GRACE_S
        while self._children.running and (left := deadline - self._children.now()) > 0:
            try:
                self._check(self._children.wait(left))
            except UserError as reason:
                return reason
        return ProcessLost(
            f"learner {self._learner}: its processes cannot reach each other ({broken})"
        )

    def _check(self, ended: list[ChildExit]) -> None:
        """Raises what the end of a helper means; one with status 0 has missed another process."""
        for one in ended:
            if one.killed:
                raise ProcessLost(f"{one.name} was lost ({one.how})")
        for one in ended:
            if one.status:
                raise UserError(f"{one.name} failed ({one.how}): its message is above")
