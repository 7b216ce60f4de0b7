"""Requests of the live page to a run on this machine, and who answers them."""

from __future__ import annotations

import faulthandler
import json
import logging
import platform
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from unisono.coordinator.requests import Action, Requested
from unisono.errors import UserError
from unisono.fabric.local.request_socket import RequestSocket
from unisono.runs.directory import write_atomically

STACK = "stack"
"""The request that changes nothing: what a learner's threads are doing."""
SOCKET = "control.sock"

Handler = Callable[[int | None], dict[str, str]]
"""Does what is asked, of a learner or of the run; returns what to say, under ``text``."""

log = logging.getLogger("unisono")


class Control:
    """Says in the run's directory where it listens, and answers whenever it is told to.

    The socket lies in a folder that only the user can enter who has started the run: whoever can
    ask could end its processes, too.

    Args:
        note: the file that says where, and what can be asked.
        folder: for the socket.
        handlers: what is done, by the name of the request; one that cannot be done is a
            ``UserError``.
    """

    def __init__(self, note: Path, folder: Path, handlers: Mapping[str, Handler]) -> None:
        self._note = note
        self._handlers = handlers
        self._socket: RequestSocket | None = None
        try:
            self._socket = RequestSocket(folder / SOCKET)
            about = {"socket": str(folder / SOCKET), "host": platform.node()}
            write_atomically(note, json.dumps({**about, "actions": list(handlers)}).encode())
        except (OSError, UserError) as error:
            _warn(error)

    def answer(self) -> None:
        """Answers those who have asked by now."""
        if self._socket is not None:
            self._socket.answer(self._respond)

    def close(self) -> None:
        """Nobody can ask any more."""
        if self._socket is not None:
            self._socket.close()
        with suppress(OSError):  # the disk may have become read-only
            self._note.unlink()

    def _respond(self, request: dict[str, Any]) -> dict[str, Any]:
        handler, learner = self._handlers.get(str(request.get("action"))), request.get("learner")
        if handler is None:
            return {"done": False, "text": "this run does not accept that request"}
        if isinstance(learner, bool) or not isinstance(learner, int | None):
            return {"done": False, "text": f"{learner!r} is not the number of a learner"}
        try:
            return {"done": True, **handler(learner)}
        except UserError as error:
            return {"done": False, "text": str(error)}
        except OSError as error:
            return {"done": False, "text": f"the request failed: {error.strerror}"}


class SingleControl:
    """Requests to a run whose one learner shares its process with the coordinator.

    The coordinator looks for them again and again, and so answers them without a thread.
    """

    def __init__(self, note: Path, folder: Path, say: Callable[[str], None]) -> None:
        self._asked: list[Requested] = []
        self._say = say
        self._stacks = folder / "stack.txt"
        handlers: dict[str, Handler] = {
            Action.CHECKPOINT.value: self._checkpoint,
            Action.STOP.value: self._stop,
            STACK: self._dump,
        }
        self._control = Control(note, folder, handlers)

    def since(self, count: int) -> list[Requested]:
        """All but the first so many requests."""
        self._control.answer()
        return self._asked[count:]

    def close(self) -> None:
        """Nobody can ask any more."""
        self._control.close()

    def _checkpoint(self, learner: int | None) -> dict[str, str]:
        return self._ask(Action.CHECKPOINT, CHECKPOINT_TEXT)

    def _stop(self, learner: int | None) -> dict[str, str]:
        return self._ask(Action.STOP, STOP_TEXT)

    def _ask(self, action: Action, text: str) -> dict[str, str]:
        self._asked.append(Requested(len(self._asked) + 1, action))
        self._say(text)
        return {"text": text}

    def _dump(self, learner: int | None) -> dict[str, str]:
        with self._stacks.open("w+") as file:
            faulthandler.dump_traceback(file)
            file.seek(0)
            return {"text": "stacks of learner 0", "stack": file.read()}


CHECKPOINT_TEXT = "a checkpoint was requested: it is written after the next round"
STOP_TEXT = "a stop was requested: the run ends after its next checkpoint"


@contextmanager
def single_control(note: Path, say: Callable[[str], None]) -> Iterator[SingleControl | None]:
    """Takes requests to a run of one learner, inside; None: there is no folder for the socket."""
    control: SingleControl | None = None
    with ExitStack() as stack:
        try:
            temporary = tempfile.TemporaryDirectory(prefix="unisono-", ignore_cleanup_errors=True)
            control = SingleControl(note, Path(stack.enter_context(temporary)), say)
            stack.callback(control.close)
        except OSError as error:
            _warn(error)
        yield control


def _warn(error: Exception) -> None:
    log.warning("unisono: the run accepts no requests: %s", error)
