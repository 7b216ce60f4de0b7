"""The state of a run in Prometheus' text format."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_LEARNER = {
    "rate": ("examples_per_second", "Examples a second, over the last seconds."),
    "share": ("work_ratio", "Share of all examples that this learner trained."),
    "ratio": ("speed_ratio", "Examples a second of computing, over the others' median."),
    "computing": ("computing_ratio", "Share of the last seconds spent computing."),
    "data": ("data_wait_ratio", "Share of the last seconds spent waiting for minibatches."),
    "others": ("round_wait_ratio", "Share of the last seconds spent waiting for other learners."),
    "exchanging": ("exchange_ratio", "Share of the last seconds spent waiting for transfers."),
    "staleness": ("staleness", "Mean staleness of the last updates."),
    "seen_s": ("last_seen_seconds", "Seconds since the learner was last heard of."),
}
_RUN = {
    "progress": ("progress_ratio", "gauge", "Share of all minibatches that were handed out."),
    "examples": ("examples_total", "counter", "Examples that were trained."),
    "rate": ("examples_per_second", "gauge", "Examples a second, of all learners."),
    "rounds": ("rounds_total", "counter", "Rounds so far."),
    "here": ("learners", "gauge", "Learners that take part."),
    "lost": ("learners_lost_total", "counter", "Learners that were lost."),
    "logprob": ("heldout_logprob", "gauge", "Held-out log-prob of the consensus, nats a frame."),
    "accuracy": ("heldout_accuracy_ratio", "gauge", "Held-out frame accuracy."),
    "time": ("run_seconds", "gauge", "Seconds since the run began."),
}
_POOL = {
    "free": "gauge",
    "leased": "gauge",
    "committed": "counter",
    "returned": "counter",
    "redone": "counter",
    "skipped": "counter",
    "dropped": "counter",
}

Labels = dict[str, str]


def exposition(state: dict[str, Any]) -> str:
    """Returns the text for a state that ``snapshot`` has made."""
    text = ""
    run = {"run": str(state["name"])}
    for key, (name, kind, about) in _RUN.items():
        text += _family(name, kind, about, [(run, state[key])])
    for key, kind in _POOL.items():
        suffix = "_total" if kind == "counter" else ""
        about = f"Minibatches: {key}."
        text += _family(f"minibatches_{key}{suffix}", kind, about, [(run, state["pool"].get(key))])
    rows = state["learners"]
    up = [(run | _labels(row), float(row["state"] == "here")) for row in rows]
    text += _family("learner_up", "gauge", "Whether the learner takes part.", up)
    trained = [(run | _labels(row), row["examples"]) for row in rows]
    text += _family("learner_examples_total", "counter", "Examples that it trained.", trained)
    slow = [(run | _labels(row), float(row["slow"])) for row in rows if "slow" in row]
    text += _family("learner_slow", "gauge", "Whether it is slower than the others.", slow)
    for key, (name, about) in _LEARNER.items():
        here = [(run | _labels(row), row.get(key)) for row in rows if row["state"] == "here"]
        text += _family(f"learner_{name}", "gauge", about, here)
    links = [(run | {"from": x["from"], "to": x["to"]}, x["rate"]) for x in state["links"]]
    return text + _family("link_bytes_per_second", "gauge", "Of the slowest links.", links)


def _labels(row: dict[str, Any]) -> Labels:
    return {"learner": str(row["n"]), "host": row["host"], "device": row["device"]}


def _family(name: str, kind: str, about: str, samples: Iterable[tuple[Labels, Any]]) -> str:
    """One metric; samples without a value are left out, and so is a metric without samples."""
    lines = [
        f"unisono_{name}{{{','.join(f'{k}={_quoted(v)}' for k, v in labels.items())}}} {value!r}\n"
        for labels, value in samples
        if value is not None
    ]
    if not lines:
        return ""
    head = f"# HELP unisono_{name} {about}\n# TYPE unisono_{name} {kind}\n"
    return head + "".join(lines)


def _quoted(value: str) -> str:
    escaped = value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
    return f'"{escaped}"'
