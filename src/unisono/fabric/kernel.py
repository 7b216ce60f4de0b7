"""A virtual clock, the activities on it, and the network between them."""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import greenlet
import torch

from unisono.fabric.address import COORDINATOR, Address
from unisono.fabric.base import Message
from unisono.fabric.schedules import Exhaustive, Schedule, Timed

if TYPE_CHECKING:
    from unisono.fabric.simulated import SimulatedNode


class Stuck(Exception):  # noqa: N818
    """Nobody can run any more, or the time limit passed: a deadlock or a livelock."""


@dataclass(frozen=True)
class Network:
    """What a message costs: ``latency`` seconds, and its bytes at ``bandwidth`` bytes a second."""

    latency: float = 0.0
    bandwidth: float = float("inf")

    def delay(self, sender: Address, receiver: Address, nbytes: int) -> float:
        """Seconds on the way."""
        return self.latency + nbytes / self.bandwidth


class Waiter:
    """One activity's wait: the first wake counts, later ones do nothing."""

    __slots__ = ("_activity", "_kernel", "fired", "target")

    def __init__(self, kernel: Kernel, activity: Any) -> None:
        self._kernel = kernel
        self._activity = activity
        self.fired = False
        self.target: Waiter | None = None

    def wake(self) -> None:
        """Makes the activity runnable."""
        if not self.fired:
            self.fired = True
            self._kernel.run_soon(self._activity)

    def fire(self) -> None:
        """As a timer: notes that time is up, and wakes the wait that it belongs to."""
        self.fired = True
        if self.target is not None:
            self.target.wake()


class Kernel:
    """The simulated cluster.

    Events happen in the order of (time, the schedule's tie, count). Under ``Exhaustive`` the clock
    orders only timers; which message is delivered next is the schedule's choice.
    """

    def __init__(
        self,
        *,
        schedule: Schedule | None = None,
        network: Network | None = None,
        numerics: bool = True,
        limit: float = 1e6,
        detection: float | None = 0.001,
    ) -> None:
        self.now = 0.0
        self.schedule: Schedule = schedule or Timed()
        self.numerics = numerics
        self.nodes: dict[Address, SimulatedNode] = {}
        self._network = network or Network()
        self._limit = limit
        self._detection = detection
        self._unordered = isinstance(self.schedule, Exhaustive)
        self._heap: list[tuple[float, float, int, Callable[[], None]]] = []
        self._count = itertools.count()
        self._channels: dict[tuple[Address, Address, str], deque[Message]] = {}
        self._arrivals: dict[tuple[Address, Address, str], float] = {}
        self._numbers: dict[tuple[Address, Address, str], int] = {}
        self._activities: dict[Any, tuple[SimulatedNode, str]] = {}
        self._paused: dict[Address, list[Any]] = {}
        self._cut: set[frozenset[Address]] = set()
        self._mains: dict[Address, Any] = {}
        self._random: dict[Address, torch.Tensor] = {}
        self._random_owner: Address | None = None
        self._hub = greenlet.getcurrent()
        self.outcomes: dict[Address, BaseException | None] = {}

    def add(self, node: SimulatedNode) -> None:
        """A node has come up."""
        self.nodes[node.address] = node
        if node.address == COORDINATOR:
            for other in self.nodes.values():
                other.coordinator_back()
        elif COORDINATOR not in self.nodes:
            node.coordinator_lost()

    def reaches(self, address: Address) -> bool:
        """Whether somebody listens at that address."""
        return address in self.nodes

    def main(self, node: SimulatedNode, activity: Callable[[], None]) -> None:
        """Starts a node's main activity; ``run`` ends when all of these have."""

        def run() -> None:
            try:
                activity()
                self.outcomes[node.address] = None
            except greenlet.GreenletExit:
                return
            except Exception as error:
                self.outcomes[node.address] = error

        self._mains[node.address] = self.start(node, "main", run)

    def start(self, node: SimulatedNode, name: str, activity: Callable[[], None]) -> Any:
        """Starts an activity of a node."""
        task = greenlet.greenlet(activity, parent=self._hub)
        self._activities[task] = (node, name)
        self.run_soon(task)
        return task

    def adopt(self, node: SimulatedNode) -> None:
        """The running activity belongs to this node from now on: its learner's next life."""
        self._activities[greenlet.getcurrent()] = (node, "main")

    def run(self) -> None:
        """Runs until every main activity has ended; the first exception of one ends all."""
        try:
            while any(not task.dead for task in self._mains.values()):
                for error in self.outcomes.values():
                    if error is not None:
                        raise error
                if not self._step():
                    raise Stuck("nobody can run: " + self._waiting())
                if self.now > self._limit:
                    raise Stuck(f"not over after {self._limit:g} s: " + self._waiting())
        finally:
            for task in list(self._activities):
                self._end(task)
        for error in self.outcomes.values():
            if error is not None:
                raise error

    def at(self, time: float, action: Callable[[], None]) -> None:
        """Runs ``action`` at that time."""
        heapq.heappush(self._heap, (time, self.schedule.tie(), next(self._count), action))

    def waiter(self) -> Waiter:
        """A wait of the running activity."""
        return Waiter(self, greenlet.getcurrent())

    def park(self) -> None:
        """Lets others run until the waiter wakes this activity."""
        self._hub.switch()

    def run_soon(self, task: Any) -> None:
        """Makes an activity runnable."""
        self.at(self.now, lambda: self._resume(task))

    def wake_all(self, node: SimulatedNode) -> None:
        """Resumes every parked activity of a node, so that it sees its cancellation."""
        me = greenlet.getcurrent()
        for task, (owner, _) in list(self._activities.items()):
            if owner is node and task is not me:
                self.run_soon(task)

    def leave(self, node: SimulatedNode) -> None:
        """A node has closed: its other activities end, messages to it are dropped."""
        me = greenlet.getcurrent()
        if self.nodes.get(node.address) is node:
            del self.nodes[node.address]
            if node.address == COORDINATOR:
                self._lose_coordinator()
            else:
                self._tell_lost(node.address)
        for task, (owner, _) in list(self._activities.items()):
            if owner is node and task is not me and task not in self._mains.values():
                self._end(task)

    def send(
        self, sender: Address, receiver: Address, port: str, message: Message, nbytes: int
    ) -> None:
        """Puts a message on its way."""
        channel = (sender, receiver, port)
        self._channels.setdefault(channel, deque()).append(message)
        if self._unordered:
            return
        size = nbytes + (0 if message.vector is None else message.vector.nbytes)
        arrival = self.now + self._network.delay(sender, receiver, size) + self.schedule.jitter()
        arrival = max(arrival, self._arrivals.get(channel, 0.0))
        self._arrivals[channel] = arrival
        self.at(arrival, lambda: self._deliver(channel))

    def flush(self, sender: Address, receiver: Address) -> None:
        """Delivers what is on its way between two nodes now: a death is told after it."""
        for channel in list(self._channels):
            if channel[:2] == (sender, receiver):
                while self._channels.get(channel) and not self._is_cut(sender, receiver):
                    self._deliver(channel)

    def keep_random_state(self, node: SimulatedNode) -> None:
        """Gives a node a random generator of its own, which starts as torch's is now."""
        self._random[node.address] = torch.get_rng_state()
        self._random_owner = node.address

    # Faults.

    def kill(self, address: Address) -> None:
        """Kill -9: its activities stop where they are; what it has sent still arrives."""
        node = self.nodes.pop(address, None)
        if node is None:
            return
        node.die()
        for channel in [c for c in self._channels if c[1] == address]:
            del self._channels[channel]
        for task, (owner, _) in list(self._activities.items()):
            if owner is node:
                self._end(task)
        self.outcomes.setdefault(address, None)
        if address == COORDINATOR:
            self._lose_coordinator()
        elif self._detection is not None:
            self.at(self.now + self._detection, lambda: self._tell_lost(address))

    def pause(self, address: Address) -> None:
        """SIGSTOP: nothing of the node runs until ``resume``."""
        self._paused.setdefault(address, [])

    def resume(self, address: Address) -> None:
        """SIGCONT."""
        for task in self._paused.pop(address, []):
            self.run_soon(task)

    def cut(self, a: Address, b: Address) -> None:
        """A silent partition: messages between the two wait until ``heal``."""
        self._cut.add(frozenset((a, b)))

    def heal(self, a: Address, b: Address) -> None:
        """The partition ends; what waited arrives."""
        self._cut.discard(frozenset((a, b)))
        for sender, receiver in ((a, b), (b, a)):
            if receiver in self.nodes:
                self.flush(sender, receiver)

    # Inside.

    def _step(self) -> bool:
        if self._unordered and (not self._heap or self._heap[0][0] > self.now):
            heads = self._heads()
            if heads:
                choice = self.schedule.choose(heads)
                assert choice is not None
                self._deliver(heads[choice][:3])
                return True
        if not self._heap:
            return False
        self.now, _, _, action = heapq.heappop(self._heap)
        action()
        return True

    def _heads(self) -> Sequence[tuple[Address, Address, str, int]]:
        return [
            (*channel, self._numbers.get(channel, 0))
            for channel, queue in self._channels.items()
            if queue and not self._is_cut(channel[0], channel[1])
        ]

    def _deliver(self, channel: tuple[Address, Address, str]) -> None:
        sender, receiver, port = channel
        queue = self._channels.get(channel)
        if not queue or self._is_cut(sender, receiver):
            return
        message = queue.popleft()
        if not queue:
            del self._channels[channel]
        self._numbers[channel] = self._numbers.get(channel, 0) + 1
        node = self.nodes.get(receiver)
        if node is not None:
            node.put(port, message)

    def _is_cut(self, a: Address, b: Address) -> bool:
        return bool(self._cut) and frozenset((a, b)) in self._cut

    def _lose_coordinator(self) -> None:
        for other in list(self.nodes.values()):
            self.flush(COORDINATOR, other.address)
            other.coordinator_lost()

    def _tell_lost(self, address: Address) -> None:
        coordinator = self.nodes.get(COORDINATOR)
        if coordinator is not None and not self._is_cut(address, COORDINATOR):
            self.flush(address, COORDINATOR)
            coordinator.tell_lost(address)

    def _resume(self, task: Any) -> None:
        if task.dead or task not in self._activities:
            return
        node, _ = self._activities[task]
        parked = self._paused.get(node.address)
        if parked is not None:
            parked.append(task)
            return
        if self._random and node.address != self._random_owner:
            self._swap_random(node.address)
        task.switch()
        if task.dead:
            self._activities.pop(task, None)

    def _swap_random(self, address: Address) -> None:
        mine = self._random.get(address)
        if mine is not None:
            if self._random_owner is not None:
                self._random[self._random_owner] = torch.get_rng_state()
            torch.set_rng_state(mine)
            self._random_owner = address

    def _end(self, task: Any) -> None:
        self._activities.pop(task, None)
        if not task.dead and task is not greenlet.getcurrent():
            task.parent = greenlet.getcurrent()
            task.throw(greenlet.GreenletExit)

    def _waiting(self) -> str:
        """Who waits, and in which line of which function outside of the fabric."""
        lines = []
        for task, (node, name) in self._activities.items():
            frame = None if task.dead else task.gr_frame
            while frame is not None and "/fabric/" in frame.f_code.co_filename:
                frame = frame.f_back
            where = "" if frame is None else f" in {frame.f_code.co_name}:{frame.f_lineno}"
            lines.append(f"{node.address.name}:{name}{where}")
        return ", ".join(sorted(lines))
