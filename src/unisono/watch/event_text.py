"""Events in words, for the log of the live page."""

from __future__ import annotations

from unisono.report.history import number
from unisono.runs.metrics import Event

_UNTOLD = frozenset(
    {"train", "round", "status", "leaves", "consensus", "exchanges", "simulated", "strategy"}
    | {"server_leaves"}
)
"""Too many, or said by others."""


def describe(event: Event) -> str:
    """Returns a line about an event; empty: it is not worth one."""
    name = event["event"]
    if name in _UNTOLD:
        return ""
    who = f"server {event['server']}" if event.get("server") is not None else "the run"
    if event["learner"] is not None:
        who = f"learner {event['learner']}"
    reason = str(event.get("reason") or "")
    because = f": {reason}" if reason else ""
    match name:
        case "start":
            return "started"
        case "joined" | "server_joined":
            host = event.get("host")
            return f"{who} joined" + (f" on {host} ({event.get('device')})" if host else "")
        case "lost" | "server_lost":
            return f"{who} was lost{because}"
        case "left" | "server_left":
            return f"{who} left"
        case "failed":
            return f"{who} failed{because}"
        case "diverged":
            factor = number(event, "rate_factor")
            return f"diverged{because}; the learning rate is now x {factor or 1:g}"
        case "requested":
            return _requested(event, who)
        case "checkpoint":
            if reason:
                return f"a checkpoint was abandoned: {reason}"
            return f"checkpoint written, with {event.get('minibatches')} minibatches"
        case "validation":
            logprob, accuracy = number(event, "logprob"), number(event, "accuracy")
            text = "" if logprob is None else f"held-out log-prob {logprob:.4f}"
            return text + (f", accuracy {accuracy:.2%}" if text and accuracy is not None else "")
        case "pace":
            return f"a round every {event.get('minibatches')} minibatches from now on"
        case _:
            known = {k: v for k, v in event.items() if k not in ("event", "time", "learner")}
            told = ", ".join(f"{key} {_plain(value)}" for key, value in known.items())
            return f"{name} ({who}): {told}"[:200] if told else f"{name} ({who})"


def _requested(event: Event, who: str) -> str:
    match event.get("action"):
        case "add":
            return f"{who} was added on request"
        case "remove":
            return f"{who} was asked to leave"
        case "checkpoint":
            return "a checkpoint was requested"
        case "stop":
            return "a stop was requested: the run ends after its next checkpoint"
        case action:
            return f"requested: {action}"


def _plain(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
