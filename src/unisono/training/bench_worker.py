"""One process of ``unisono bench``: times every way of training, in turns.

All processes of a bench go through the same list of turns. In a turn each way is timed once, all
processes at the same time: after a few steps of warming up everybody waits for everybody, a window
opens, and the steps that are finished inside it count. Model, data and minibatch are those of a
configuration. A way whose steps are not finite is over for all processes; the next one follows.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.optim import PostLocalSGDOptimizer
from torch.nn.parallel import DistributedDataParallel

from unisono.config import Config, load
from unisono.coordinator.client import Abandoned
from unisono.data import Part
from unisono.errors import Cause, UserError
from unisono.fabric.local.parent import die_with
from unisono.learner.learner import Learner
from unisono.learner.placement import (
    COORDINATOR_SOCKET,
    LaunchedProcess,
    Placement,
    SingleProcess,
    at_placement,
)
from unisono.models import build
from unisono.strategies.base import Strategy, examples_to_minibatches
from unisono.training.allocator import keep_freed_memory
from unisono.training.builders import (
    choose_device,
    examples_in,
    make_optimizer,
    open_data,
    shape_of,
    source_of,
)
from unisono.training.contenders import CONTENDERS, Contender
from unisono.training.objective import objective_of
from unisono.training.precision import autocast, choose_precision

WARM_UP_STEPS = 5
HEAD_START_S = 0.3
TIMEOUT_S = 30.0


class Window:
    """The time in which steps count; the same for all processes of this host."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._opens = float("inf")
        self._warm_up = WARM_UP_STEPS
        self.is_open = False
        self.steps = 0

    def step_done(self) -> bool:
        """Counts a step; says whether to go on."""
        self._warm_up -= 1
        if self._warm_up == 0:
            self.open()
        now = time.monotonic()
        if self._opens <= now < self._opens + self._seconds:
            self.steps += 1
        return now < self._opens + self._seconds

    def open(self) -> None:
        """Everybody is here: the window opens for all at the same time."""
        dist.barrier()
        opens = torch.tensor([time.monotonic() + HEAD_START_S], dtype=torch.float64)
        dist.broadcast(opens, 0)
        self._opens = float(opens)
        self.is_open = True


class BenchWorker:
    """Times the ways."""

    def __init__(self, config: Config, number: int, learners: int, slow: float) -> None:
        self._number = number
        self._learners = learners
        self._repeats = round(slow) if number == 0 else 1
        self._config = config
        self._device = choose_device(config, number)
        self._prep = open_data(config)
        self._objective = objective_of(config)
        self._size = examples_in(config, config.minibatch)
        model = self._build()
        self._source = source_of(config, self._prep, Part.TRAIN, model, None)
        self._precision = choose_precision(config.precision, self._device, model)

    def time(self, way: Contender, seconds: float) -> dict[str, Any]:
        """One window of one way; what this process did in it, and why it ended early, if it did."""
        torch.manual_seed(0)
        cores = os.cpu_count() or 1
        together = self._config.threads or max(1, cores // self._learners)
        torch.set_num_threads((self._config.threads or cores) if way.alone else together)
        keep_freed_memory()
        model = self._build()
        idle = way.alone and self._number > 0
        before: dict[str, Any] = {"steps": 0.0, "rounds": 0.0, "bytes": 0.0}
        if way.strategy is not None:
            return self._time_learner(way, model, seconds, before)
        window = Window(seconds)
        if idle:
            window.open()
        else:
            self._time_loop(way, model, window)
        dist.barrier()
        return {**before, "steps": window.steps / seconds, "ended": ""}

    def _build(self) -> nn.Module:
        model = build(self._config.model, seed=0, **shape_of(self._config, self._prep))
        return model.to(self._device)

    def _loss(self, model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        with autocast(self._precision, self._device):
            return self._objective.loss(model, x, y)

    def _time_loop(self, way: Contender, model: nn.Module, window: Window) -> None:
        optimizer: Any = make_optimizer(self._config, model, self._config.start_rate)
        shared: nn.Module = model
        averager = None
        if way.name == "ddp":
            shared = DistributedDataParallel(model)
        elif way.name == "postlocal":
            period = examples_to_minibatches(way.every, self._config.minibatch)
            averager = PeriodicModelAverager(period=period, warmup_steps=0)
            optimizer = PostLocalSGDOptimizer(optimizer, averager)
        for x, y in self._minibatches():
            self._extra_work(model, x, y)
            torch.autograd.backward(self._loss(shared, x, y))
            optimizer.step()
            optimizer.zero_grad()
            if self._device.type == "cuda":
                torch.cuda.synchronize(self._device)
            go_on = window.step_done()
            if way.waits:
                go_on = self._all_go_on(go_on)
            if not go_on:
                return

    def _time_learner(
        self, way: Contender, model: nn.Module, seconds: float, result: dict[str, Any]
    ) -> dict[str, Any]:
        assert way.strategy is not None
        ended = ""
        with tempfile.TemporaryDirectory(prefix="unisono-") as folder:
            window = Window(seconds)
            if way.alone and self._number > 0:
                window.open()
            elif way.alone:
                with _caught() as caught:
                    result = self._learn(way.strategy, model, SingleProcess(), window, seconds)
                ended = caught.reason
            else:
                shared = [folder]
                dist.broadcast_object_list(shared, 0)
                coordinator = self._start_coordinator(shared[0]) if self._number == 0 else None
                dist.barrier()
                placement = LaunchedProcess(
                    Path(shared[0]), self._number, self._learners, TIMEOUT_S
                )
                with _caught() as caught:
                    result = self._learn(way.strategy, model, placement, window, seconds)
                ended = caught.reason
                if coordinator is not None:
                    coordinator.wait()
            if not window.is_open:
                window.open()  # the others wait for everybody
            dist.barrier()
        return {**result, "ended": ended}

    def _learn(
        self,
        strategy: Strategy,
        model: nn.Module,
        placement: Placement,
        window: Window,
        seconds: float,
    ) -> dict[str, Any]:
        optimizer = make_optimizer(self._config, model, self._config.start_rate)
        size, prefetch = self._size, self._config.prefetch
        with (
            at_placement(placement),
            Learner(model, optimizer, strategy, prefetch=prefetch) as learner,
        ):
            rounds = sent = 0
            for x, y in learner.draw(self._source, epochs=100_000, batch_size=size):
                x, y = x.to(self._device), y.to(self._device)
                self._extra_work(model, x, y)
                learner.step(self._loss(model, x, y))
                before = window.steps
                if not window.step_done():
                    break
                if before == 0:
                    rounds, sent = learner.rounds, learner.bytes_sent
            return {
                "steps": window.steps / seconds,
                "rounds": (learner.rounds - rounds) / seconds,
                "bytes": (learner.bytes_sent - sent) / seconds,
            }

    def _start_coordinator(self, folder: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "unisono.launch.coordinator_main", folder]
        command += ["--learners", str(self._learners), "--timeout", str(TIMEOUT_S)]
        process = subprocess.Popen(command)
        while not (Path(folder) / COORDINATOR_SOCKET).exists() and process.poll() is None:
            time.sleep(0.01)
        return process

    def _extra_work(self, model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> None:
        """What makes learner 0 slow: whole gradients that nobody uses."""
        for _ in range(self._repeats - 1):
            torch.autograd.grad(self._loss(model, x, y), list(model.parameters()))

    def _minibatches(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        size = self._size
        generator = np.random.default_rng(self._number)
        while True:
            order = generator.permutation(len(self._source))
            for start in range(0, len(order) - size + 1, size):
                x, y = self._source.batch(order[start : start + size])
                yield x.to(self._device), y.to(self._device)

    def _all_go_on(self, go_on: bool) -> bool:
        """Collective ways must end at the same step: by a count that all have alike."""
        self._turn = getattr(self, "_turn", 0) + 1
        if self._turn % 16:
            return True
        flag = torch.tensor([1.0 if go_on else 0.0])
        dist.all_reduce(flag, dist.ReduceOp.MIN)
        return bool(flag.item())


class _caught:  # noqa: N801
    """Keeps why a way ended; any other error than those of a run that gives up goes on."""

    reason = ""

    def __enter__(self) -> _caught:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if isinstance(error, Abandoned):
            cause, text = error.failure.cause, error.failure.text.strip().splitlines()[-1]
        elif isinstance(error, UserError):
            cause, text = error.cause, str(error)
        else:
            return False
        self.reason = f"{'diverged' if cause is Cause.DIVERGED else 'failed'}: {text}"
        return True


def main() -> None:
    """Goes through the turns; process 0 prints one JSON line a timing."""
    parser = argparse.ArgumentParser()
    parser.add_argument("parent", type=int)
    parser.add_argument("config", type=Path)
    parser.add_argument("store", type=Path)
    parser.add_argument("number", type=int)
    parser.add_argument("learners", type=int)
    parser.add_argument("slow", type=float)
    parser.add_argument("seconds", type=float)
    parser.add_argument("turns", type=int)
    parser.add_argument("names", nargs="+")
    options = parser.parse_args()
    die_with(options.parent)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{options.store}",
        rank=options.number,
        world_size=options.learners,
    )
    config = load(options.config, [], {})
    worker = BenchWorker(config, options.number, options.learners, options.slow)
    contenders = [way for way in CONTENDERS if way.name in options.names]
    for turn in range(options.turns):
        for place in range(len(contenders)):
            way = contenders[(place + turn) % len(contenders)]
            mine = worker.time(way, options.seconds)
            everybody: list[Any] = [None] * options.learners
            dist.all_gather_object(everybody, mine)
            if options.number == 0:
                total = {k: sum(e[k] for e in everybody) for k in ("steps", "rounds", "bytes")}
                least = min(e["steps"] for e in everybody)
                total["slowest"] = least * options.learners / max(total["steps"], 1e-9)
                total["ended"] = next((e["ended"] for e in everybody if e["ended"]), "")
                print(json.dumps({"turn": turn, "name": way.name, **total}), flush=True)
    end_process()


def end_process() -> NoReturn:
    """Ends a process that has used gloo, without freeing its process group.

    The destructor waits with the GIL held for threads of which one may be waiting for the GIL.
    """
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
