"""A pool of worker processes; results do not depend on how many there are."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from itertools import islice
from typing import Any, Generic, TypeVar

from unisono.errors import UserError
from unisono.fabric.local.parent import end_with_parent

State = TypeVar("State")
Item = TypeVar("Item")
Result = TypeVar("Result")

_state: Any = None
# Batches that wait for each process.
_AHEAD = 3
# One thread a process: the processes are the parallelism.
_ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class WorkerPool(Generic[State]):
    """Processes that each hold a state of their own; one process means this one."""

    def __init__(self, processes: int, setup: Callable[..., State], *arguments: Any) -> None:
        """Starts the workers.

        Args:
            processes: How many; 1 works in this process.
            setup: A module's function that makes the state, once in each process.
            *arguments: Its arguments.
        """
        self._executor: ProcessPoolExecutor | None = None
        self._processes = processes
        self._worker_cpu_s = 0.0
        if processes > 1:
            self._executor = ProcessPoolExecutor(
                processes,
                mp_context=multiprocessing.get_context("forkserver"),
                initializer=_begin,
                initargs=(setup, arguments),
            )
        else:
            self._own = setup(*arguments)

    def map(
        self, task: Callable[[State, Item], Result], items: Iterable[Item], *, chunk: int = 1
    ) -> Iterator[Result]:
        """Yields task(state, item) of each item, in order.

        Args:
            task: A module's function.
            items: What to do; read no further ahead than keeps the processes busy.
            chunk: Items that travel together.

        Raises:
            UserError: A process was killed, or could not be started.
        """
        if self._executor is None:
            for item in items:
                yield task(self._own, item)
            return
        try:
            yield from self._spread(self._executor, task, items, chunk)
        except BrokenProcessPool:
            raise UserError(
                "a process was killed in the middle of its work, perhaps for lack of memory: "
                "use fewer --processes"
            ) from None

    def _spread(
        self,
        pool: ProcessPoolExecutor,
        task: Callable[[State, Item], Result],
        items: Iterable[Item],
        chunk: int,
    ) -> Iterator[Result]:
        waiting: deque[Future[tuple[list[Result], float]]] = deque()

        def first_results() -> list[Result]:
            results, cpu_s = waiting.popleft().result()
            self._worker_cpu_s += cpu_s
            return results

        source = iter(items)
        while batch := list(islice(source, chunk)):
            waiting.append(_submit(pool, task, batch))
            if len(waiting) > _AHEAD * self._processes:
                yield from first_results()
        while waiting:
            yield from first_results()

    @property
    def worker_cpu_s(self) -> float:
        """CPU seconds of finished tasks in processes other than this one."""
        return self._worker_cpu_s

    def close(self) -> None:
        """Ends the processes."""
        if self._executor is not None:
            self._executor.shutdown(cancel_futures=True)

    def __enter__(self) -> WorkerPool[State]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _submit(
    pool: ProcessPoolExecutor, task: Callable[..., Any], batch: list[Any]
) -> Future[tuple[list[Any], float]]:
    """Hands a batch to the processes, of which one more may be started for it."""
    try:
        with _one_thread_each():
            return pool.submit(_run, task, batch)
    except (EOFError, OSError):  # EOFError: the server that forks them has died of it
        raise UserError(
            "no worker process can be started, perhaps because there are too many processes or too "
            "little memory: end other programs, or use fewer --processes"
        ) from None


def _run(task: Callable[[Any, Item], Result], items: list[Item]) -> tuple[list[Result], float]:
    """Results with the state of the process that it runs in, and the CPU seconds they took."""
    before = time.process_time()
    results = [task(_state, item) for item in items]
    return results, time.process_time() - before


def _begin(setup: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    global _state
    # Ctrl-C goes to all processes of a terminal; the one that started the others tells of it.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    end_with_parent()
    _state = setup(*arguments)


@contextmanager
def _one_thread_each() -> Iterator[None]:
    """Sets the environment that processes started inside inherit."""
    before = {name: os.environ.get(name) for name in _ONE_THREAD}
    os.environ.update(dict.fromkeys(_ONE_THREAD, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
