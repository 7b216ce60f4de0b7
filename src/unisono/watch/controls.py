"""Requests of the live page, which are passed to the process that started the run."""

from __future__ import annotations

import json
import platform
from pathlib import Path
from typing import Any

from unisono.fabric.local.request_socket import send_request
from unisono.watch.feed import Feed, Stage

PATIENCE_S = 8.0
"""Seconds to wait for the run's answer."""


class Controls:
    """Where a run takes requests, if it does."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed

    def offered(self) -> tuple[list[str], str]:
        """The names of the requests that the run takes now, and, where there are none, why."""
        if self._feed.live.simulated:
            return [], "the run is simulated"
        if self._feed.stage in (Stage.FINISHED, Stage.FAILED):
            return [], "the run has ended"
        note = self._note()
        if not note:
            return [], "only unisono train on one machine accepts requests"
        if note["host"] != platform.node():
            return [], f"the run accepts requests only on its own machine, {note['host']}"
        return note["actions"], ""

    def refusal(self, action: str) -> str:
        """Why the run does not take a request now; empty: it does."""
        actions, why = self.offered()
        return "" if action in actions else why or "this run does not accept that request"

    def ask(self, action: str, learner: int | None) -> dict[str, Any]:
        """Asks the run; the answer has what to say under ``text``, and whether it was ``done``.

        It reads none of the events, so that others can meanwhile.
        """
        request = {"action": action, "learner": learner}
        try:
            return send_request(Path(self._note()["socket"]), request, PATIENCE_S)
        except PermissionError:
            return {"done": False, "text": "the run was started by another user"}
        except (OSError, KeyError):
            return {"done": False, "text": "the run does not respond: has it ended?"}

    def _note(self) -> dict[str, Any]:
        try:
            note = json.loads(self._feed.run.control.read_bytes())
            return {
                "socket": str(note["socket"]),
                "host": str(note["host"]),
                "actions": [str(action) for action in note["actions"]],
            }
        except (OSError, ValueError, LookupError, TypeError):
            return {}
