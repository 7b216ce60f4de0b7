"""A virtual clock, the activities on it, and the network between them."""

from __future__ import annotations

import itertools
import os
from collections import deque
from collections.abc import Callable
from functools import partial
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any

import greenlet
import torch

from unisono.fabric.address import COORDINATOR, Address
from unisono.fabric.api import Message
from unisono.fabric.simulated.network import Channel
from unisono.fabric.simulated.network import Network as Network
from unisono.fabric.simulated.network import SimulatedNetwork as SimulatedNetwork
from unisono.fabric.simulated.schedulers import (
    Delivery,
    ExhaustiveScheduler,
    Scheduler,
    TimedScheduler,
)
from unisono.fabric.simulated.waiter import Waiter

if TYPE_CHECKING:
    from unisono.fabric.simulated.node import SimulatedNode


_HERE = os.path.dirname(__file__)
Action = Callable[[Any], Any]
"""What happens at an event, with its argument; an activity that it returns goes on at once."""


class DeadlockError(Exception):
    """Nobody can run any more, or the time limit passed: a deadlock or a livelock."""


class Kernel:
    """The simulated cluster.

    Events happen in the order of (time, the schedule's tie, count). Under ``ExhaustiveScheduler``
    the clock orders only timers; which message is delivered next is the schedule's choice.

    Where the clock alone decides, an activity that parks makes the next events happen itself, and
    hands over to the next activity without a detour through the hub, which is the activity of
    ``run``. What is asked for with ``at`` may end activities, and happens in the hub.
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
        self._is_timed = isinstance(self.scheduler, TimedScheduler)
        self._heap: list[tuple[float, float, int, Action | None, Any]] = []
        """Later events: time, tie, count, and what happens; None: the activity goes on."""
        self._ready: deque[tuple[Action | None, Any]] = deque()
        """Events of now that came after now had begun, so after those of the heap; if timed."""
        self._count = itertools.count()
        self._busy: dict[Channel, None] = {}
        """Channels with messages on their way."""
        self._outbound: dict[Address, dict[tuple[Address, str], Channel]] = {}
        self._inbound: dict[Address, dict[Channel, None]] = {}
        self._numbers: dict[tuple[Address, Address, str], int] = {}
        self._running: Any = None
        self._starting: Any = None
        """Runs next, for the first time: begun by another, it would count as nested in that."""
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
        node.is_up = True
        if node.address == COORDINATOR:
            for other in self.nodes.values():
                other.coordinator_back()
        elif COORDINATOR not in self.nodes:
            node.coordinator_lost()

    def outbound(self, address: Address) -> dict[tuple[Address, str], Channel]:
        """The channels of a sender, by receiver and port, for a new node at its address.

        It has all credit; what the node before it sent is still on its way, and comes first.
        """
        channels = self._outbound.setdefault(address, {})
        for channel in channels.values():
            channel.unreleased = 0
        return channels

    def inbound(self, address: Address) -> dict[Channel, None]:
        """The channels with messages on their way to an address."""
        return self._inbound.setdefault(address, {})

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
        self._push(time, _call, action)

    def wake_at(self, time: float, waiter: Waiter) -> None:
        """Lets the waiter's activity go on at that time."""
        self._push(time, Waiter.resume, waiter)

    def fire_at(self, time: float, waiter: Waiter) -> None:
        """Lets a waiter know that it is that time."""
        self._push(time, Waiter.fire, waiter)

    @property
    def is_still(self) -> bool:
        """Whether nothing can happen any more before the clock moves on, if the clock decides."""
        return (
            self._is_timed and not self._ready and (not self._heap or self._heap[0][0] > self.now)
        )

    def waiter(self) -> Waiter:
        """A wait of the running activity."""
        return Waiter(self, greenlet.getcurrent())

    def park(self) -> None:
        """Lets others run until the waiter wakes this activity."""
        me = greenlet.getcurrent()
        task = self._next() if self._is_timed and me in self._activities else None
        if task is me:
            return
        if task:
            self._running = task
            task.switch()
        else:
            self._starting = task
            self._hub.switch()

    def run_soon(self, task: Any) -> None:
        """Makes an activity runnable."""
        if self._is_timed:
            self._ready.append((None, task))
        else:
            self._push(self.now, None, task)

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
            node.is_up = False
            if node.address == COORDINATOR:
                self._lose_coordinator()
            else:
                self._tell_lost(node.address)

    def send(self, channel: Channel, message: Message, nbytes: int) -> None:
        """Puts a message on its way."""
        queue = channel.queue
        if not queue:
            self._busy[channel] = None
            channel.receiver.inbound[channel] = None
        if self._exhaustive is not None:
            queue.append((0.0, message))
            return
        vector, now = message.vector, self.now
        size = nbytes if vector is None else nbytes + vector.nbytes
        arrival = now + self.network.delay(channel.sender, channel.receiver.address, size, now)
        if not self._is_timed:
            arrival += self.scheduler.jitter()
        if arrival < channel.arrival:
            arrival = channel.arrival
        channel.arrival = arrival
        queue.append((arrival, message))
        self._push(arrival, self._arrive, channel)

    def flush(self, sender: Address, receiver: Address) -> None:
        """Delivers what is on its way between two nodes now: a death is told after it."""
        node = self.nodes.get(receiver)
        inbound = () if node is None else node.inbound
        for channel in [channel for channel in inbound if channel.sender == sender]:
            while channel.queue and not self._is_cut(channel):
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
        node.is_up = False
        node.die()
        self._paused.pop(address, None)
        for channel in list(node.inbound):
            channel.queue.clear()
            self._drop(channel)
        for task in list(self._of_node.get(node, {})):
            self._end(task)
        if address == COORDINATOR:
            self._lose_coordinator()
        elif self._detection is not None:
            self.at(self.now + self._detection, partial(self._tell_lost, address))

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
        for channel in self._busy:
            if {a, b} == set(channel.ends):
                for arrival, _ in channel.queue:
                    self._push(max(self.now, arrival), self._arrive, channel)

    # Inside.

    def _push(self, time: float, action: Action | None, argument: Any) -> None:
        if not self._is_timed:
            event = (time, self.scheduler.tie(), next(self._count), action, argument)
            heappush(self._heap, event)
        elif time == self.now:
            self._ready.append((action, argument))
        else:
            heappush(self._heap, (time, 0.0, next(self._count), action, argument))

    def _next(self) -> Any:
        """Makes events happen until an activity is to go on; None: the hub has to see to it."""
        heap, ready = self._heap, self._ready
        while True:
            if ready and not (heap and heap[0][0] <= self.now):
                action, argument = ready[0]
                if action is _call:
                    return None
                ready.popleft()
            elif heap and heap[0][3] is not _call and heap[0][0] <= self._limit:
                self.now, _, _, action, argument = heappop(heap)
            else:
                return None
            task = argument if action is None else action(argument)
            if task is not None and self._may_go_on(task):
                return task

    def _step(self) -> bool:
        """Makes one event happen, in the hub."""
        heap, ready = self._heap, self._ready
        if self._exhaustive is not None and (not heap or heap[0][0] > self.now):
            heads = self._heads()
            if heads:
                choice = self.scheduler.choose([delivery for delivery, _ in heads])
                assert choice is not None
                self._deliver(heads[choice][1])
                return True
        if ready and not (heap and heap[0][0] <= self.now):
            action, argument = ready.popleft()
        elif heap:
            self.now, _, _, action, argument = heappop(heap)
        else:
            return False
        task = argument if action is None else action(argument)
        if task is not None and self._may_go_on(task):
            self._run(task)
        return True

    def _run(self, task: Any) -> None:
        """Lets an activity run, and those to which it hands over, until the hub is needed."""
        while task is not None:
            self._running = task
            task.switch()
            if self._running.dead:
                self._forget(self._running)
            task, self._starting = self._starting, None

    def _heads(self) -> list[tuple[Delivery, Channel]]:
        """What can be delivered next."""
        keys = [(*channel.ends, channel.port) for channel in self._busy]
        return [
            ((*key, self._numbers.get(key, 0)), channel)
            for key, channel in zip(keys, self._busy, strict=True)
            if not self._is_cut(channel)
        ]

    def _arrive(self, channel: Channel) -> None:
        """Delivers the next message if its time has come: it may have been flushed or cut off."""
        queue = channel.queue
        if queue and queue[0][0] <= self.now and not (self._cut and self._is_cut(channel)):
            self._deliver(channel)

    def _deliver(self, channel: Channel) -> None:
        _, message = channel.queue.popleft()
        if not channel.queue:
            self._drop(channel)
        if self._exhaustive is not None:
            key = (*channel.ends, channel.port)
            self._numbers[key] = self._numbers.get(key, 0) + 1
        receiver: SimulatedNode | None = channel.receiver
        if not channel.receiver.is_up:
            receiver = self.nodes.get(channel.receiver.address)
        if receiver is not None:
            receiver.put(channel.port, message)

    def _drop(self, channel: Channel) -> None:
        """Nothing is on its way on this channel any more."""
        channel.arrival = 0.0
        del self._busy[channel]
        del channel.receiver.inbound[channel]

    def _is_cut(self, channel: Channel) -> bool:
        return bool(self._cut) and frozenset(channel.ends) in self._cut

    def _lose_coordinator(self) -> None:
        for other in list(self.nodes.values()):
            self.flush(COORDINATOR, other.address)
            other.coordinator_lost()

    def _tell_lost(self, address: Address) -> None:
        coordinator = self.nodes.get(COORDINATOR)
        if coordinator is not None and frozenset((address, COORDINATOR)) not in self._cut:
            self.flush(address, COORDINATOR)
            coordinator.tell_lost(address)

    def _may_go_on(self, task: Any) -> bool:
        """Prepares for an activity to run; False: it has ended, or is paused."""
        if task not in self._activities or task.dead:
            return False
        if self._paused or self._random or self._exhaustive is not None:
            return self._prepare(task)
        return True

    def _prepare(self, task: Any) -> bool:
        address = self._activities[task][0].address
        parked = self._paused.get(address)
        if parked is not None:
            parked.append(task)
            return False
        if self._random:
            self._swap_random(address)
        if self._exhaustive is not None:
            self._exhaustive.touch(address)
        return True

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


def _call(action: Callable[[], object]) -> None:
    action()
