"""Draws the diagrams of the documentation: ``python tools/diagrams.py`` writes docs/images/*.svg.

The timelines show who waits for whom. They are not drawn by hand: each strategy's own code runs
on the simulated fabric with three learners, of which the last is half as fast, and what is drawn
is when each learner computed and which vectors it sent.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import unisono
from svg import COMPUTE, INK, MESSAGE, SLOW, WAIT, Drawing
from unisono.fabric import Fabric
from unisono.fabric.simulated.kernel import SimulatedNetwork
from unisono.strategies.base import Strategy
from unisono.testing.coverage import Coverage
from unisono.testing.simulated import ToyCluster
from unisono.testing.toy import BATCH, ToyLearner

IMAGES = Path(__file__).parents[1] / "docs" / "images"
LATENCY = 0.35
SECONDS = 17.0
_SCALE, _LEFT, _TOP, _LANE = 44.0, 120.0, 46.0, 46.0


@dataclass
class Timeline:
    """When each learner computed, and which vectors were sent: (from, to, at)."""

    computed: dict[int, list[tuple[float, float]]] = field(default_factory=dict)
    sent: list[tuple[int, int, float]] = field(default_factory=list)


@dataclass(kw_only=True)
class RecordedCluster(ToyCluster):
    """A simulated cluster that keeps a timeline."""

    timeline: Timeline = field(default_factory=Timeline)

    def toy(self, fabric: Fabric, coverage: Coverage) -> ToyLearner:
        """A learner whose node notes what it does."""
        number = fabric.address.number
        compute, send, timeline = fabric.compute, fabric.send, self.timeline
        spans = timeline.computed.setdefault(number, [])

        def noted_compute(work: Callable[[], Any], cost: float) -> Any:
            began = fabric.now()
            result = compute(work, cost)
            spans.append((began, fabric.now()))
            return result

        def noted_send(to: Any, port: str, body: Any, vector: Any = None, **more: Any) -> None:
            if vector is not None and to.role == "learner":
                timeline.sent.append((number, to.number, fabric.now()))
            send(to, port, body, vector, **more)

        fabric.compute = noted_compute  # type: ignore[method-assign]
        fabric.send = noted_send  # type: ignore[method-assign, assignment]
        return super().toy(fabric, coverage)


def record(strategy: Strategy) -> Timeline:
    """Runs a strategy with three learners, the last of them half as fast."""
    cluster = RecordedCluster(
        strategy=strategy,
        learners=3,
        total=60,
        slowness={2: 2.0},
        network=SimulatedNetwork(latency=LATENCY),
        prefetch=2,
    )
    cluster.run()
    return cluster.timeline


def draw_timeline(strategy: Strategy, title: str) -> str:
    """Draws who computed, who waited, and what was sent."""
    timeline = record(strategy)
    start = max(spans[0][0] for spans in timeline.computed.values())
    end = start + SECONDS
    drawing = Drawing(int(_LEFT + SECONDS * _SCALE + 20), int(_TOP + 3 * _LANE + 34), title)
    drawing.text(12, 24, title, weight="bold")

    def at(time: float) -> float:
        return _LEFT + (min(time, end) - start) * _SCALE

    for number, spans in sorted(timeline.computed.items()):
        top = _TOP + number * _LANE
        name = f"learner {number}" + (" (slow)" if number == 2 else "")
        drawing.text(8, top + 16, name)
        drawing.box(at(start), top, SECONDS * _SCALE, 24, WAIT)
        for began, ended in spans:
            if start <= began < end:
                width = max(1.0, at(ended) - at(began) - 1.5)
                drawing.box(at(began), top, width, 24, SLOW if number == 2 else COMPUTE)
    for sender, receiver, sent in timeline.sent:
        if start <= sent and sent + LATENCY <= end and sender != receiver:
            down = receiver > sender
            y1 = _TOP + sender * _LANE + (24 if down else 0)
            y2 = _TOP + receiver * _LANE + (0 if down else 24)
            drawing.arrow(at(sent), y1, at(sent + LATENCY), y2)
    y = _TOP + 3 * _LANE + 6
    legend = ((COMPUTE, "computing a minibatch"), (WAIT, "waiting"), (MESSAGE, "a vector sent"))
    for index, (colour, text) in enumerate(legend):
        drawing.box(_LEFT + 190 * index, y, 16, 12, colour)
        drawing.text(_LEFT + 190 * index + 22, y + 11, text)
    drawing.text(_LEFT + SECONDS * _SCALE, y + 11, "time →", anchor="end")
    return drawing.render()


def draw_packages() -> str:
    """Draws the packages; each imports only from those below it."""
    rows = [
        ("cli", "one file a command: parses and prints"),
        (
            "training · launch · watch",
            "worker, compare, decode, demo · local, Ray, torchrun · live page",
        ),
        ("report", "HTML pages and tables of runs"),
        (
            "learner · models · optim · speech · runs · simulation",
            "the object in the loop · networks · natural gradient · audio to WER · files of a run",
        ),
        ("strategies · data", "one file a strategy, engines/ · frames, chunks, PREP"),
        ("coordinator", "leases, membership, sync rounds, journal, checkpoints"),
        ("pool", "leases over the positions of the corpus"),
        ("fabric", "send, receive, spawn, compute: simulated/, local/, network/"),
        ("config · errors · files", ""),
    ]
    height = 46
    drawing = Drawing(760, 40 + len(rows) * (height + 8) + 12, "Packages of unisono")
    drawing.text(16, 26, "src/unisono: imports point downwards only", weight="bold")
    for index, (name, what) in enumerate(rows):
        y = 40 + index * (height + 8)
        drawing.frame(16, y, 728, height, f"{name}\n{what}" if what else name)
    return drawing.render()


def draw_minibatch() -> str:
    """Draws the way of one minibatch."""
    drawing = Drawing(896, 470, "The way of one minibatch")
    drawing.text(16, 26, "The way of one minibatch", weight="bold")
    boxes = {
        "coordinator": (16, 50, 190, 62, "coordinator\nleases a range of positions"),
        "feed": (16, 160, 190, 62, "data feed\nloads examples, prefetches"),
        "loop": (260, 160, 190, 62, "your loop\nmodel(x), loss"),
        "backward": (260, 270, 190, 62, "learner.backward(loss)\ngradients"),
        "hook": (540, 270, 170, 62, "strategy\nmay replace gradients"),
        "update": (260, 380, 190, 62, "optimizer.step()\nthen pending deltas"),
        "agent": (540, 380, 170, 62, "strategy's agent\nround, push, exchange"),
        "others": (756, 380, 124, 62, "other learners"),
        "commit": (540, 50, 340, 62, "coordinator: committed\nthe effect outlives this learner"),
    }
    for x, y, width, height, text in boxes.values():
        drawing.frame(x, y, width, height, text)
    for x1, y1, x2, y2 in (
        (111, 112, 111, 160),
        (206, 191, 260, 191),
        (355, 222, 355, 270),
        (450, 294, 540, 294),
        (540, 312, 450, 312),
        (355, 332, 355, 380),
        (450, 404, 540, 404),
        (540, 422, 450, 422),
        (710, 404, 756, 404),
        (756, 422, 710, 422),
        (818, 380, 818, 112),
    ):
        drawing.arrow(x1, y1, x2, y2, INK)
    drawing.arrow(540, 81, 206, 81, INK)
    for x, y, text in (
        (118, 140, "lease"),
        (464, 398, "snapshot"),
        (476, 438, "delta"),
        (826, 250, "commit"),
        (300, 74, "position never leased again"),
    ):
        drawing.text(x, y, text)
    return drawing.render()


def draw_lease() -> str:
    """Draws the states of a lease."""
    drawing = Drawing(780, 250, "The states of a lease")
    drawing.text(16, 26, "The states of a minibatch", weight="bold")
    for x, text in ((16, "free"), (226, "leased"), (436, "trained"), (646, "committed")):
        drawing.frame(x, 90, 118, 46, text)
    drawing.frame(436, 190, 118, 46, "skipped")
    for x, text in ((134, "lease"), (344, "step"), (554, "commit")):
        drawing.arrow(x, 113, x + 92, 113, INK)
        drawing.text(x + 46, 105, text, anchor="middle")
    drawing.arrow(495, 136, 495, 190, INK)
    drawing.text(503, 166, "the step was not finite")
    drawing.line(495, 90, 495, 56, INK)
    drawing.line(285, 90, 285, 56, INK)
    drawing.line(495, 56, 75, 56, INK)
    drawing.arrow(75, 56, 75, 90, INK)
    drawing.text(290, 50, "returned: the learner died, was refused, or gave it back")
    return drawing.render()


def diagrams() -> dict[str, str]:
    """Returns every diagram by its file's name."""
    every = 4 * BATCH
    averaging = unisono.Averaging(every=every, sharding=unisono.Sharding.STATIC)
    dynamic = unisono.Averaging(every=every, sharding=unisono.Sharding.DYNAMIC)
    timelines: list[tuple[str, Strategy, str]] = [
        ("allreduce", unisono.AllReduce(), "allreduce: everybody waits at each step"),
        ("averaging_static", averaging, "averaging, static: everybody waits at each round"),
        ("averaging_dynamic", dynamic, "averaging, dynamic: nobody waits"),
        ("server", unisono.Server(push_every=2, shards=1), "server: nobody waits"),
        ("elastic", unisono.Elastic(push_every=2, shards=1), "elastic: nobody waits"),
        ("gossip_random", unisono.GossipRandom(every=2 * BATCH), "gossip-random: nobody waits"),
        ("adpsgd", unisono.ADPSGD(every=BATCH), "adpsgd: nobody waits"),
        (
            "delay_by_one",
            unisono.DelayByOne(),
            "delay-by-one: waits, one step late",
        ),
    ]
    drawn = {name: draw_timeline(strategy, title) for name, strategy, title in timelines}
    return {
        **{f"timeline_{name}.svg": text for name, text in drawn.items()},
        "packages.svg": draw_packages(),
        "minibatch.svg": draw_minibatch(),
        "lease.svg": draw_lease(),
    }


if __name__ == "__main__":
    IMAGES.mkdir(parents=True, exist_ok=True)
    for name, text in diagrams().items():
        (IMAGES / name).write_text(text, encoding="utf-8")
        print(IMAGES / name)
