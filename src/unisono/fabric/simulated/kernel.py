"""A virtual clock, the activities on it, and the network between them."""

from __future__ import annotations

import heapq
import itertools
import os
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import greenlet
import torch

from unisono.fabric.address import COORDINATOR, Address
from unisono.fabric.api import Message
from unisono.fabric.simulated.schedulers import ExhaustiveScheduler, Scheduler, TimedScheduler

if TYPE_CHECKING:
    from unisono.fabric.simulated.node import SimulatedNode


_HERE = os.path.dirname(__file__)
Channel = tuple[Address, Address, str]
"""Sender, receiver and port: order is kept in each."""


class DeadlockError(Exception):
    """Nobody can run any more, or the time limit passed: a deadlock or a livelock."""


class Network(Protocol):
    """What a message costs."""

    def delay(self, sender: Address, receiver: Address, nbytes: int, now: float) -> float:
        """Seconds on the way of a message that is sent now; asked once a message, in order."""
        ...

    def sending(self, nbytes: int) -> float:
        """Seconds of the sender's own core."""
        ...


@dataclass(frozen=True)
class SimulatedNetwork:
    """What a message costs: ``latency`` seconds, and its bytes at ``bandwidth`` bytes a second."""

    latency: float = 0.0
    bandwidth: float = float("inf")

    def delay(self, sender: Address, receiver: Address, nbytes: int, now: float) -> float:
        """Seconds on the way; messages do not get in each other's way."""
        return self.latency + nbytes / self.bandwidth

    def sending(self, nbytes: int) -> float:
        """None."""
        return 0.0


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

    def resume(self) -> None:
        """As a timer: the activity goes on at once."""
        if not self.fired:
            self.fired = True
            self._kernel.resume_now(self._activity)

    def fire(self) -> None:
        """As a timer: notes that time is up, and wakes the wait that it belongs to."""
        self.fired = True
        if self.target is not None:
            self.target.wake()


class Kernel:
    """The simulated cluster.

    Events happen in the order of (time, the schedule's tie, count). Under ``ExhaustiveScheduler``
    the clock orders only timers; which message is delivered next is the schedule's choice.
    """

    def __init__(
        self,
        *,
        scheduler: Scheduler | None = None,
        network: Network | None = None,
        numerics: bool = True,
        limit: float = 1e6,
        detection: float | None = 0.001,
    ) -> None:
        self.now = 0.0
        self.scheduler: Scheduler = scheduler or TimedScheduler()
        self.numerics = numerics
        self.may_switch = numerics or not isinstance(self.scheduler, TimedScheduler)
        """Whether a fabric call that need not wait may be refused, or let others run first."""
        self.nodes: dict[Address, SimulatedNode] = {}
        self.network: Network = network or SimulatedNetwork()
        self._limit = limit
        self._detection = detection
        self._exhaustive = (
            self.scheduler if isinstance(self.scheduler, ExhaustiveScheduler) else None
        )
        self._heap: list[tuple[float, float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = itertools.count()
        self._channels: dict[Channel, deque[tuple[float, Message]]] = {}
        self._between: dict[tuple[Address, Address], dict[Channel, None]] = {}
        """Channels with messages on their way, by sender and receiver."""
        self._arrivals: dict[Channel, float] = {}
        self._numbers: dict[Channel, int] = {}
        self._activities: dict[Any, tuple[SimulatedNode, str]] = {}
        self._of_node: dict[SimulatedNode, dict[Any, None]] = {}
        self._joining: dict[SimulatedNode, list[Waiter]] = {}
        self._paused: dict[Address, list[Any]] = {}
        self._cut: set[frozenset[Address]] = set()
        self._mains: dict[Any, None] = {}
        self._failure: BaseException | None = None
        self._random: dict[Address | None, torch.Tensor] = {}
        self._random_owner: Address | None = None
        self._hub = greenlet.getcurrent()

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
            except greenlet.GreenletExit:
                return
            except Exception as error:
                self._failure = self._failure or error

        self._mains[self.start(node, "main", run)] = None

    def start(self, node: SimulatedNode, name: str, activity: Callable[[], None]) -> Any:
        """Starts an activity of a node."""
        task = greenlet.greenlet(activity, parent=self._hub)
        self._enroll(task, node, name)
        self.run_soon(task)
        return task

    def adopt(self, node: SimulatedNode) -> None:
        """The running activity belongs to this node from now on: its learner's next incarnation."""
        task = greenlet.getcurrent()
        before, _ = self._activities[task]
        self._forget(task)
        self._enroll(task, node, "main")
        self._mains[task] = None
        if before.address in self._random:
            self._random[node.address] = self._random.pop(before.address)
            if self._random_owner == before.address:
                self._random_owner = node.address

    def run(self) -> None:
        """Runs until every main activity has ended; the first exception of one ends all."""
        try:
            while self._mains and self._failure is None:
                if not self._step():
                    raise DeadlockError("nobody can run: " + self._waiting())
                if self.now > self._limit:
                    raise DeadlockError(f"not over after {self._limit:g} s: " + self._waiting())
        finally:
            for task in list(self._activities):
                self._end(task)
            self._swap_random(None)
        if self._failure is not None:
            raise self._failure

    def at(self, time: float, action: Callable[[], None]) -> None:
        """Runs ``action`` at that time."""
        self._push(time, action)

    def waiter(self) -> Waiter:
        """A wait of the running activity."""
        return Waiter(self, greenlet.getcurrent())

    def park(self) -> None:
        """Lets others run until the waiter wakes this activity."""
        self._hub.switch()

    def run_soon(self, task: Any) -> None:
        """Makes an activity runnable."""
        self._push(self.now, self.resume_now, task)

    def wake_all(self, node: SimulatedNode) -> None:
        """Resumes every parked activity of a node, so that it sees its cancellation."""
        me = greenlet.getcurrent()
        for task in self._of_node.get(node, {}):
            if task is not me:
                self.run_soon(task)

    def leave(self, node: SimulatedNode) -> None:
        """A cancelled node closes: its spawned activities end, then messages to it are dropped."""
        self._join(node)
        if self.nodes.get(node.address) is node:
            del self.nodes[node.address]
            if node.address == COORDINATOR:
                self._lose_coordinator()
            else:
                self._tell_lost(node.address)

    def send(
        self, sender: Address, receiver: Address, port: str, message: Message, nbytes: int
    ) -> None:
        """Puts a message on its way."""
        channel = (sender, receiver, port)
        queue = self._channels.get(channel)
        if queue is None:
            queue = self._channels[channel] = deque()
            self._between.setdefault((sender, receiver), {})[channel] = None
        if self._exhaustive is not None:
            queue.append((0.0, message))
            return
        size = nbytes + (0 if message.vector is None else message.vector.nbytes)
        delay = self.network.delay(sender, receiver, size, self.now)
        arrival = self.now + delay + self.scheduler.jitter()
        arrival = max(arrival, self._arrivals.get(channel, 0.0))
        self._arrivals[channel] = arrival
        queue.append((arrival, message))
        self._push(arrival, self._arrive, channel)

    def flush(self, sender: Address, receiver: Address) -> None:
        """Delivers what is on its way between two nodes now: a death is told after it."""
        for channel in list(self._between.get((sender, receiver), ())):
            while self._channels.get(channel) and not self._is_cut(sender, receiver):
                self._deliver(channel)

    def keep_random_state(self, node: SimulatedNode) -> None:
        """Gives a node a generator of torch's of its own, which starts as the common one is now."""
        if node.address not in self._random:
            state = torch.get_rng_state()
            self._random[self._random_owner] = self._random[node.address] = state
            self._random_owner = node.address

    # Faults.

    def kill(self, address: Address) -> None:
        """Kill -9: its activities stop where they are; what it has sent still arrives."""
        node = self.nodes.pop(address, None)
        if node is None:
            return
        node.die()
        self._paused.pop(address, None)
        for channel in [c for c in self._channels if c[1] == address]:
            self._drop(channel)
        for task in list(self._of_node.get(node, {})):
            self._end(task)
        if address == COORDINATOR:
            self._lose_coordinator()
        elif self._detection is not None:
            self._push(self.now + self._detection, self._tell_lost, address)

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
        for channel, queue in self._channels.items():
            if {a, b} == {channel[0], channel[1]}:
                for arrival, _ in queue:
                    self._push(max(self.now, arrival), self._arrive, channel)

    # Inside.

    def _push(self, time: float, action: Callable[..., None], *arguments: Any) -> None:
        event = (time, self.scheduler.tie(), next(self._count), action, arguments)
        heapq.heappush(self._heap, event)

    def _step(self) -> bool:
        if self._exhaustive is not None and (not self._heap or self._heap[0][0] > self.now):
            heads = self._heads()
            if heads:
                choice = self.scheduler.choose(heads)
                assert choice is not None
                self._deliver(heads[choice][:3])
                return True
        if not self._heap:
            return False
        self.now, _, _, action, arguments = heapq.heappop(self._heap)
        action(*arguments)
        return True

    def _heads(self) -> Sequence[tuple[Address, Address, str, int]]:
        return [
            (*channel, self._numbers.get(channel, 0))
            for channel, queue in self._channels.items()
            if queue and not self._is_cut(channel[0], channel[1])
        ]

    def _arrive(self, channel: Channel) -> None:
        """Delivers the next message if its time has come: it may have been flushed or cut off."""
        queue = self._channels.get(channel)
        if queue and queue[0][0] <= self.now and not self._is_cut(channel[0], channel[1]):
            self._deliver(channel)

    def _deliver(self, channel: Channel) -> None:
        _, receiver, port = channel
        queue = self._channels[channel]
        _, message = queue.popleft()
        if not queue:
            self._drop(channel)
        if self._exhaustive is not None:
            self._numbers[channel] = self._numbers.get(channel, 0) + 1
        node = self.nodes.get(receiver)
        if node is not None:
            node.put(port, message)

    def _drop(self, channel: Channel) -> None:
        """Nothing is on its way on this channel any more."""
        del self._channels[channel]
        self._arrivals.pop(channel, None)
        channels = self._between[channel[:2]]
        del channels[channel]
        if not channels:
            del self._between[channel[:2]]

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

    def resume_now(self, task: Any) -> None:
        """Lets an activity run until it parks; only from the hub."""
        if task.dead or task not in self._activities:
            return
        node, _ = self._activities[task]
        parked = self._paused.get(node.address)
        if parked is not None:
            parked.append(task)
            return
        if self._random:
            self._swap_random(node.address)
        if self._exhaustive is not None:
            self._exhaustive.touch(node.address)
        task.switch()
        if task.dead:
            self._forget(task)

    def _swap_random(self, address: Address | None) -> None:
        """Those without a generator of their own share one, which is kept apart, too."""
        mine = address if address in self._random else None
        if mine != self._random_owner:
            self._random[self._random_owner] = torch.get_rng_state()
            torch.set_rng_state(self._random[mine])
            self._random_owner = mine

    def _enroll(self, task: Any, node: SimulatedNode, name: str) -> None:
        self._activities[task] = (node, name)
        self._of_node.setdefault(node, {})[task] = None

    def _forget(self, task: Any) -> None:
        """An activity has ended; who closes its node may wait for that."""
        entry = self._activities.pop(task, None)
        self._mains.pop(task, None)
        if entry is None:
            return
        tasks = self._of_node[entry[0]]
        del tasks[task]
        if not tasks:
            del self._of_node[entry[0]]
        for waiter in self._joining.pop(entry[0], ()):
            waiter.wake()

    def _join(self, node: SimulatedNode) -> None:
        """Waits for the other activities; an action of the hub cannot wait, and ends them."""
        me = greenlet.getcurrent()
        while others := [
            task
            for task in self._of_node.get(node, {})
            if task is not me and task not in self._mains
        ]:
            if me is self._hub:
                self._end(others[0])
            else:
                self._joining.setdefault(node, []).append(self.waiter())
                self.park()

    def _end(self, task: Any) -> None:
        self._forget(task)
        if not task.dead and task is not greenlet.getcurrent():
            task.parent = greenlet.getcurrent()
            task.throw(greenlet.GreenletExit)

    def _waiting(self) -> str:
        """Who waits, and in which line of which function outside of the fabric."""
        lines = []
        for task, (node, name) in self._activities.items():
            frame = None if task.dead else task.gr_frame
            while frame is not None and os.path.dirname(frame.f_code.co_filename) == _HERE:
                frame = frame.f_back
            where = "" if frame is None else f" in {frame.f_code.co_name}:{frame.f_lineno}"
            lines.append(f"{node.address.name}:{name}{where}")
        return ", ".join(sorted(lines))
