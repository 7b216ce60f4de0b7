"""The workers of the user's DataLoader, which load minibatches.

They are asked for positions, each in its turn, and what they make is taken in the order in which it
was asked for, so neither their number nor their pace changes what is trained on. Asking never waits
for the pool: whoever asks decides how far ahead. They are started before the learner has any
connection or thread, so a forked one holds no socket of the run, and a learner that is killed is
seen at once. A worker whose learner is gone reads the end of its pipe and ends.
"""

from __future__ import annotations

import gc
import random
import signal
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch
import torch.multiprocessing as multiprocessing  # it teaches the pipes to pass tensors on
from torch._utils import ExceptionWrapper
from torch.utils.data._utils import worker as torch_worker

from unisono.errors import UserError

_GRACE_S = 5.0
"""Seconds that workers have to end when they are told to."""


@dataclass(frozen=True)
class WorkerSettings:
    """A DataLoader's settings for its workers."""

    dataset: Any
    count: int
    prefetch_factor: int = 2
    """Minibatches that a worker makes ahead."""
    context: Any = None
    """A context of ``multiprocessing``; None: the usual one."""
    init: Callable[[int], None] | None = None
    """The user's ``worker_init_fn``."""
    timeout: float = 0.0
    """Seconds to wait for a minibatch; 0: as long as it takes."""


@dataclass(frozen=True)
class _Worker:
    number: int
    process: Any
    pipe: Connection


class Workers:
    """Running workers, which call ``make``; it must be picklable unless they are forked.

    What a dataset draws at random is a function of seed and position: before each minibatch a
    worker seeds the generators of torch, numpy and Python with both.
    """

    def __init__(self, crew: WorkerSettings, make: Callable[[Any], Any], seed: int) -> None:
        self.window = crew.count * crew.prefetch_factor
        """Minibatches to ask for ahead."""
        self._timeout = crew.timeout
        self._asked: deque[_Worker] = deque()
        self._workers: list[_Worker] = []
        self._turn = 0
        self._closing = False
        context = crew.context or multiprocessing.get_context()
        forks = context.get_start_method() == "fork"
        if forks and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            # Not in the workers: they cannot give memory of the GPU back.
            gc.collect()
        ours: list[Connection] = []
        for number in range(crew.count):
            mine, theirs = context.Pipe()
            ours.append(mine)
            info = torch_worker.WorkerInfo(
                id=number, num_workers=crew.count, seed=seed + number, dataset=crew.dataset
            )
            inherited = ours if forks else []
            arguments = (make, seed, info, crew.init, theirs, inherited)
            process = context.Process(target=_work, args=arguments, daemon=True)
            process.start()
            theirs.close()
            self._workers.append(_Worker(number, process, mine))

    @property
    def pids(self) -> list[int]:
        return [worker.process.pid for worker in self._workers]

    def ask(self, position: int, indices: Any) -> None:
        """Asks the next worker for the data of a position; never waits."""
        worker = self._workers[self._turn]
        self._turn = (self._turn + 1) % len(self._workers)
        try:
            worker.pipe.send((position, indices))
        except OSError:
            raise self._death_of(worker) from None
        self._asked.append(worker)

    def take(self) -> Any:
        """The data that was asked for first; raises the worker's exception."""
        worker = self._asked[0]
        if self._timeout > 0 and not worker.pipe.poll(self._timeout):
            raise UserError(
                f"DataLoader worker {worker.number} made no minibatch in {self._timeout:g} s "
                "(timeout of the DataLoader)"
            )
        data = self._receive()
        if isinstance(data, ExceptionWrapper):
            data.reraise()  # type: ignore[no-untyped-call]
        return data

    def forget(self) -> None:
        """Discards what was asked for."""
        while self._asked:
            self._receive()

    def stop(self) -> None:
        """Stops the workers, which wakes threads that wait for them."""
        self._closing = True
        for worker in self._workers:
            if self._asked:
                worker.process.terminate()
                continue
            with suppress(OSError):
                worker.pipe.send(None)

    def join(self) -> None:
        """Waits until they have ended; nobody may use them any more."""
        for worker in self._workers:
            worker.process.join(_GRACE_S)
            worker.process.kill()
            worker.process.join()
            worker.process.close()
            worker.pipe.close()
        self._workers.clear()

    def _receive(self) -> Any:
        worker = self._asked[0]
        try:
            data = worker.pipe.recv()
        except (EOFError, OSError):
            raise self._death_of(worker) from None
        self._asked.popleft()
        return data

    def _death_of(self, worker: _Worker) -> Exception:
        if self._closing:
            return RuntimeError("the workers were stopped")
        worker.process.join(_GRACE_S)
        code = worker.process.exitcode
        how = (
            f"was killed by signal {-code}" if code is not None and code < 0 else f"ended ({code})"
        )
        return UserError(
            f"DataLoader worker {worker.number} {how}: if memory was short, use fewer workers"
        )


def _work(
    make: Callable[[Any], Any],
    seed: int,
    info: Any,
    init: Callable[[int], None] | None,
    pipe: Connection,
    inherited: Sequence[Connection],
) -> None:
    """What a worker does until its pipe ends."""
    gc.freeze()
    for ours in inherited:
        ours.close()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    torch_worker._worker_info = info
    trouble: ExceptionWrapper | None = None
    try:
        _seed(info.seed, 0)
        if init is not None:
            init(info.id)
    except Exception:
        trouble = _trouble(info)
    while True:
        try:
            asked = pipe.recv()
        except (EOFError, OSError):
            return
        if asked is None:
            return
        data = trouble or _made(make, seed, asked, info)
        try:
            _answer(pipe, data, info)
        except OSError:
            return


def _made(make: Callable[[Any], Any], seed: int, asked: tuple[int, Any], info: Any) -> Any:
    position, indices = asked
    try:
        _seed(seed, position)
        return make(indices)
    except Exception:
        return _trouble(info)


def _answer(pipe: Connection, data: Any, info: Any) -> None:
    try:
        pipe.send(data)
        return
    except OSError:
        raise
    except Exception:
        trouble = data if isinstance(data, ExceptionWrapper) else _trouble(info)
    try:
        pipe.send(trouble)
    except OSError:
        raise
    except Exception:
        trouble.exc_type = RuntimeError  # the user's own class cannot be pickled
        pipe.send(trouble)


def _trouble(info: Any) -> ExceptionWrapper:
    where = f"in DataLoader worker process {info.id}"
    return ExceptionWrapper(where=where)  # type: ignore[no-untyped-call]


def _seed(seed: int, position: int) -> None:
    words = np.random.SeedSequence((seed % 2**64, position)).generate_state(3, np.uint64)
    torch.manual_seed(int(words[0] >> np.uint64(1)))
    random.seed(int(words[1]))
    np.random.seed(int(words[2] >> np.uint64(32)))
