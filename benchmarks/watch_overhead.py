"""What the live page costs, in CPU time a second of a run.

    PYTHONPATH=tests python benchmarks/watch_overhead.py

A learner: its heartbeats every 2 s say what it does, and a wait for others is marked as such. The
coordinator: one status event a second. The page's server, for one open page: reading the events of
a second and making the message. CPU time, not wall-clock, so that a busy machine may measure it.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support.live_events import Cluster
from unisono.config import load
from unisono.coordinator.messages import Heartbeat
from unisono.coordinator.pace import Pace
from unisono.coordinator.service import MOST_BEAT_S
from unisono.coordinator.status import Doing, LinkRate, Phase, Status
from unisono.fabric import learner, to_plain
from unisono.fabric.api import Traffic
from unisono.learner.link_rates import LinkRates
from unisono.pool.pool import Pool
from unisono.runs import RunDirectory, format_event
from unisono.watch.feed import Feed
from unisono.watch.snapshot import Subscription

LEARNERS = (4, 32, 200)


class Links:
    """A fabric that has sent something to everybody."""

    def __init__(self, learners: int) -> None:
        self.traffic = {learner(n): Traffic(1000, 1.0) for n in range(learners)}
        self.now = time.monotonic


def cpu_s(work: Callable[[], object], times: int) -> float:
    """CPU seconds of one call, the least of five repeats."""
    found = []
    for _ in range(5):
        began = time.process_time()
        for _ in range(times):
            work()
        found.append((time.process_time() - began) / times)
    return min(found)


def of_learner(learners: int) -> float:
    """A heartbeat with a phase and links, less one without."""
    fabric: Any = Links(learners)
    rates = LinkRates(fabric)

    def with_phase() -> object:
        for traffic in fabric.traffic.values():
            traffic.bytes += 1000
            traffic.seconds += 0.1
        phase = Phase(Doing.COMPUTING, 0.1, rates.slowest())
        return to_plain(Heartbeat("tcp:127.0.0.1:1", phase))

    plain = cpu_s(lambda: to_plain(Heartbeat("tcp:127.0.0.1:1")), 200)
    return (cpu_s(with_phase, 200) - plain) / MOST_BEAT_S


def of_coordinator(learners: int) -> float:
    """The status of a run in which every learner has something to tell."""

    def write(name: str, fields: dict[str, Any]) -> None:
        format_event({"event": name, **fields})

    status = Status(write, MOST_BEAT_S)
    pool = Pool(100_000)
    members = [learner(n) for n in range(learners)]
    for member in members:
        pool.lease(member, 16, learners)
    seen = dict.fromkeys(members, 0.0)
    phase = Phase(Doing.OTHERS, 1.0, LinkRate("learner 1", 1000, 1.0))

    def tell() -> None:
        for member in members[::2]:  # a heartbeat every 2 s
            status.heard(member, phase)
        status.tell(1.0, pool, seen, Pace(((0, 16),)))

    return cpu_s(tell, 50)


def of_page(learners: int, folder: Path) -> float:
    """Reading the events of a second, and one message."""
    run = RunDirectory.create(folder / str(learners), load(None, [], {}))
    clock = [0.0]
    with run.metrics.open("ab") as file:
        cluster = Cluster(learners, lambda event: file.write(format_event(event)))
        cluster.start()
        cluster.waits = True
        cluster.run(60)
        file.flush()
        page = Subscription(Feed(run, lambda: clock[0]))
        page.next()
        spent = 0.0
        for _ in range(30):
            cluster.run(1)
            file.flush()
            clock[0] += 1.0
            began = time.process_time()
            page.next()
            spent += time.process_time() - began
    return spent / 30


def main() -> None:
    """Prints a table."""
    print("learners  a learner  the coordinator  the page's server (of one core, CPU time)")
    with tempfile.TemporaryDirectory() as folder:
        for learners in LEARNERS:
            shares = (
                of_learner(learners),
                of_coordinator(learners),
                of_page(learners, Path(folder)),
            )
            one, coordinator, page = (f"{share:.4%}" for share in shares)
            print(f"{learners:8}  {one:>9}  {coordinator:>15}  {page:>17}")


if __name__ == "__main__":
    main()
