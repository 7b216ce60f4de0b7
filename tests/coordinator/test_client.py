"""A learner's messages survive the coordinator: none is lost, none counts twice, order is kept."""

from __future__ import annotations

from typing import Any

import pytest

from unisono.coordinator.client import Client, CoordinatorLost, Refused
from unisono.coordinator.directives import Acknowledged, NotMember
from unisono.coordinator.messages import (
    CONTROL,
    PORT,
    Idle,
    Numbered,
    Reply,
    Sync,
    Synced,
)
from unisono.coordinator.service import PATIENCE
from unisono.fabric import COORDINATOR, Cancelled, learner
from unisono.fabric.simulated.kernel import Kernel, SimulatedNetwork
from unisono.fabric.simulated.node import SimulatedNode
from unisono.fabric.simulated.schedulers import SeededScheduler

TIMEOUT = 5.0


class Stub:
    """A coordinator that remembers what is in order, as the journal would, and answers it."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.kept: list[int] = []
        self.answers = True
        self.acknowledges = False

    def start(self) -> None:
        node = SimulatedNode(self.kernel, COORDINATOR)
        node.port(PORT)
        node.spawn("serve", lambda: self._serve(node))

    def kill(self, back_after: float) -> None:
        self.kernel.kill(COORDINATOR)
        self.kernel.at(self.kernel.now + back_after, self.start)

    def _serve(self, node: SimulatedNode) -> None:
        while True:
            message = node.receive(PORT)
            body = message.body
            if not isinstance(body, Numbered):
                continue
            if body.sequence == len(self.kept):
                self.kept.append(body.sequence)
            if self.acknowledges and self.kept:
                node.send(message.sender, CONTROL, Acknowledged(self.kept[-1]))
            if body.reply and self.answers and body.sequence in self.kept:
                node.send(message.sender, body.reply, Reply(body.sequence, Synced()))


def stage(seed: int = 0) -> tuple[Kernel, Stub, SimulatedNode]:
    kernel = Kernel(
        scheduler=SeededScheduler(seed), network=SimulatedNetwork(latency=0.1), limit=1000.0
    )
    stub = Stub(kernel)
    stub.start()
    return kernel, stub, SimulatedNode(kernel, learner(0))


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("acknowledges", [False, True])
def test_nothing_is_lost_with_a_coordinator(seed: int, acknowledges: bool) -> None:
    """Two activities tell and ask while it is killed three times."""
    kernel, stub, node = stage(seed)
    stub.acknowledges = acknowledges
    done: list[str] = []

    def main() -> None:
        client = Client(node, TIMEOUT)

        def other() -> None:
            for _ in range(10):
                client.call(Sync(), "others")
                node.sleep(0.17)
            done.append("other")
            node.post("done", {})

        node.port("done")
        node.spawn("other", other)
        for step in range(20):
            client.tell(Idle())
            node.sleep(0.11)
            if step % 5 == 0:
                client.call(Sync(), "mine")
        done.append("main")
        node.receive("done")
        client.call(Sync(), "mine")

    kernel.main(node, main)
    for at in (0.35, 1.1, 2.3):
        kernel.at(at + 0.01 * seed, lambda: stub.kill(back_after=0.3))
    kernel.run()
    assert sorted(done) == ["main", "other"]
    # 20 notes, 4 + 1 questions of one and 10 of the other, each once and in order.
    assert stub.kept == list(range(35))


def test_a_question_is_asked_again_although_it_was_acknowledged() -> None:
    """The journal has it, but the answer was lost with the coordinator."""
    kernel, stub, node = stage()
    stub.acknowledges = True
    stub.answers = False
    asked: list[Any] = []

    def main() -> None:
        client = Client(node, TIMEOUT)
        asked.append(client.call(Sync(), "mine"))

    def die() -> None:
        stub.answers = True
        stub.kill(back_after=0.5)

    kernel.main(node, main)
    kernel.at(1.0, die)
    kernel.run()
    assert asked == [Synced()]


def test_a_coordinator_that_stays_away_ends_the_life() -> None:
    kernel, _, node = stage()
    ended: list[tuple[float, BaseException | None]] = []

    def main() -> None:
        client = Client(node, TIMEOUT)
        client.tell(Idle())
        try:
            client.call(Sync(), "mine")
            client.call(Sync(), "mine")
            node.sleep(1.0)
            client.call(Sync(), "mine")
        except Cancelled as end:
            ended.append((node.now(), end.__cause__))

    kernel.main(node, main)
    kernel.at(0.9, lambda: kernel.kill(COORDINATOR))
    kernel.run()
    [(when, reason)] = ended
    assert isinstance(reason, CoordinatorLost)
    assert PATIENCE * TIMEOUT <= when <= (PATIENCE + 1) * TIMEOUT + 1


def test_a_refusal_ends_the_life() -> None:
    kernel, _, node = stage()

    def main() -> None:
        client = Client(node, TIMEOUT)
        client.call(Sync(), "mine")
        node.receive("never")

    kernel.main(node, main)
    kernel.at(
        1.0, lambda: kernel.nodes[COORDINATOR].send(node.address, CONTROL, NotMember(), wait=False)
    )
    with pytest.raises(Cancelled) as end:
        kernel.run()
    assert isinstance(end.value.__cause__, Refused)
