"""A module's ``main`` in a fork of this process: as a new interpreter, without its start.

Importing torch takes each learner seconds of a core; a fork has it already. It is for a process of
our own that has one thread, has not touched a GPU, and computes with one thread, so that no pool of
threads is missing in the fork.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

_PR_SET_NAME = 15


@dataclass(frozen=True)
class Fork:
    """A child, with what is needed here of ``subprocess.Popen``."""

    pid: int

    def terminate(self) -> None:
        os.kill(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> int:
        """Its exit status, once it has ended; negative: the signal that killed it."""
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def run_forked(
    module: str, arguments: Sequence[str], environment: Mapping[str, str], first: Callable[[], None]
) -> Fork:
    """What ``python -m module arguments`` does; ``first`` is called in the child before it.

    Nothing of this process runs on in the child: it ends with ``main``, and without unwinding.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    # A signal to the child waits until the handlers of this process are gone there.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    pid = -1
    try:
        with warnings.catch_warnings():
            # Python 3.12 counts the threads of numpy's OpenBLAS, which is made for forks.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
    finally:
        if pid:  # also where there is no process to be had
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
    if pid:
        return Fork(pid)
    status = 1
    try:
        _forget_handlers()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        first()
        os.environ.update(environment)
        sys.argv = [module, *arguments]
        sys.modules[module].main()
        status = 0
    except SystemExit as ended:
        status = _status_of(ended.code)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        finally:  # also where a reader is gone: nothing may unwind into this process' code
            os._exit(status)


def name_process(name: str) -> None:
    """The name that ``top`` shows, at most 15 bytes of it."""
    ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode()[:15])


def _forget_handlers() -> None:
    """Those of this process; a new interpreter has its own."""
    sys.excepthook = sys.__excepthook__
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)


def _status_of(code: object) -> int:
    """The exit status of ``sys.exit(code)``."""
    if code is None:
        return 0
    if isinstance(code, int):
        return code
    print(code, file=sys.stderr)
    return 1
