"""The coordinator as an activity: messages in, the journal, messages out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from unisono.coordinator.journal import Journal
from unisono.coordinator.outbox import RETRY_S, Outbox
from unisono.coordinator.output import Output
from unisono.coordinator.state import State
from unisono.fabric.address import Address
from unisono.fabric.api import Cancelled, Fabric, Member, Message, TimedOut

PORT = "coordinator"
BEATS = 5
"""Heartbeats in one timeout."""
PATIENCE = 6
"""Timeouts to wait for somebody who is away: the coordinator, or the last learner."""

STAY_S = 1.0
"""Seconds for which a coordinator that has come back serves, even if nobody is left."""

Sink = Callable[[dict[str, Any]], None]


class Service:
    """Runs the state machine.

    ``timeout`` is the one time that the user sets: a learner that is silent for so long is declared
    dead. A killed process is seen at once: by the end of its connection on one host, by its place,
    where nobody listens any more, on several. ``fixed``: nobody may be lost, or the run has failed.
    A run begins when the ``expected`` learners are there; who has not come after a while is not
    waited for, unless the run ``waits_for_all``, because whoever starts them sees to it that they
    come. Events have the time since the run ``began``, maybe in an earlier life of the coordinator.
    """

    def __init__(
        self,
        fabric: Fabric,
        journal: Journal,
        *,
        expected: int,
        timeout: float,
        fixed: bool = False,
        sink: Sink | None = None,
        on_checkpoint: Sink | None = None,
        waits_for_all: bool = False,
        began: float | None = None,
    ) -> None:
        self.state = State(expected)
        self._fabric = fabric
        self._journal = journal
        self._timeout = timeout
        self._fixed = fixed
        self._waits_for_all = waits_for_all
        self._sink = sink or (lambda event: None)
        self._on_checkpoint = on_checkpoint or (lambda body: None)
        self._seen: dict[Address, float] = {}
        self._outbox = Outbox(fabric)
        self._unacknowledged: dict[Address, int] = {}
        now = fabric.now()
        self._began = now if began is None else began
        self._stay_until = now
        self._looked = now
        self._deserted: float | None = None
        self._first_came: float | None = None
        self._orphaned: float | None = None
        fabric.port(PORT, lost=True)

    def run(self) -> None:
        """Serves until everybody who came has left, or nobody of the lost came back."""
        self._replay()
        while not self.over:
            operations = self._collect()
            operations += self._find_silent()
            operations += self._start_without_the_missing()
            operations += self._give_up_orphans()
            operations += self._fail_of_a_loss(operations)
            outputs: list[Output] = []
            for operation in operations:
                self._tell_of(operation)
                if operation["kind"] == "lost":
                    self._outbox.forget(Address.parse(operation["who"]))
                outputs += self.state.apply(operation)
            if operations:
                self._journal.append(operations)
            for output in outputs:
                self._send(output)
            self._acknowledge(operations)
        self._say_last_words()

    def _say_last_words(self) -> None:
        """Who is leaving waits for its answer; it has as long as a silent learner has."""
        deadline = self._fabric.now() + self._timeout
        while not self._outbox.empty and self._fabric.now() < deadline:
            self._fabric.sleep(RETRY_S)
            self._outbox.flush()

    @property
    def over(self) -> bool:
        """Whether nobody is left of those who came, and nobody is expected back."""
        if self.state.joined == 0 or self.state.learners:
            self._deserted = None
            return False
        now = self._fabric.now()
        if self.state.orderly:
            return now >= self._stay_until
        self._deserted = now if self._deserted is None else self._deserted
        return now - self._deserted > PATIENCE * self._timeout

    def _replay(self) -> None:
        now = self._fabric.now()
        for operation in self._journal.replay():
            self._note_member(operation)
            self.state.apply(operation)
            # Who left last may not have been told before the coordinator died.
            self._stay_until = now + STAY_S
        self._seen = dict.fromkeys(self.state.learners, now)
        self._looked = now
        for output in self.state.directives():
            self._send(output)

    def _collect(self) -> list[dict[str, Any]]:
        """All messages that are there, waiting for the first."""
        operations: list[dict[str, Any]] = []
        self._outbox.flush()
        patience = self._timeout / BEATS if self._outbox.empty else RETRY_S
        if not self.state.learners:
            patience = min(patience, STAY_S)
        while True:
            try:
                message = self._fabric.receive(PORT, timeout=patience)
            except TimedOut:
                return operations
            operation = self._take(message)
            if operation is not None:
                operations.append(operation)
            patience = 0.0

    def _take(self, message: Message) -> dict[str, Any] | None:
        body, sender = dict(message.body), message.sender
        if sender == self._fabric.address:
            return {"kind": "lost", "who": body["who"], "reason": "its process ended"}
        kind = body["kind"]
        if kind == "event":
            body["time"] = self._fabric.now() - self._began
            self._sink(body)
            return None
        if kind == "join" and self.state.may_join(sender):
            body["who"] = str(sender)
            self._note_member(body)
        elif sender not in self.state.learners:
            if str(sender) not in self.state.lost:
                if kind == "alive":
                    return None  # It is about to join, or has just left.
                if body["sequence"] <= self.state.acknowledged(sender):
                    return {**body, "who": str(sender)}  # It has left, and was not told.
                if not self.state.may_join(sender):
                    return None  # It has left; what its strategy still says is no matter.
            self._fabric.meet(Member(sender, body.get("endpoint", "")))
            self._send(Output(sender, "control", {"kind": "refused"}))
            return None
        self._seen[sender] = self._fabric.now()
        return None if kind == "alive" else {**body, "who": str(sender)}

    def _tell_of(self, operation: dict[str, Any]) -> None:
        """Lets the metrics know who comes and who goes."""
        name = {"lost": "lost", "join": "joined", "leave": "leaves"}.get(operation["kind"])
        who = Address.parse(operation["who"])
        if name is not None and (who in self.state.learners) == (name != "joined"):
            event = {"event": name, "learner": who.number, "who": str(who)}
            event["reason"] = operation.get("reason", "")
            self._sink({**event, "time": self._fabric.now() - self._began})

    def _note_member(self, operation: dict[str, Any]) -> None:
        if operation["kind"] == "join":
            address = Address.parse(operation["who"])
            self._fabric.meet(Member(address, operation["endpoint"]))

    def _find_silent(self) -> list[dict[str, Any]]:
        """Those to be declared dead; the last that has the model is waited for longer.

        Nobody could go on without it, so its death would end the run; paused or cut off, it may
        come back, and goes on where it was.
        """
        now = self._fabric.now()
        if now - self._looked > self._timeout / 2:
            # The coordinator itself was stopped: it cannot have heard anybody.
            self._seen = dict.fromkeys(self._seen, now)
        self._looked = now
        late = now - self._timeout
        silent = [a for a in self.state.learners if self._seen.get(a, late + 1) < late]
        state_holders = self.state.state_holders
        if state_holders and set(state_holders) <= set(silent):
            last = max(state_holders, key=lambda a: self._seen[a])
            if now - self._seen[last] < PATIENCE * self._timeout:
                silent.remove(last)
        reason = f"silent for {self._timeout:g} s"
        return [{"kind": "lost", "who": str(a), "reason": reason} for a in silent]

    def _start_without_the_missing(self) -> list[dict[str, Any]]:
        if self.state.started or not self.state.learners or self._waits_for_all:
            self._first_came = None
            return []
        now = self._fabric.now()
        self._first_came = now if self._first_came is None else self._first_came
        if now - self._first_came < PATIENCE * self._timeout:
            return []
        return [{"kind": "start", "who": str(self._fabric.address)}]

    def _give_up_orphans(self) -> list[dict[str, Any]]:
        now = self._fabric.now()
        if not self.state.orphaned or self.state.failure is not None:
            self._orphaned = None
            return []
        self._orphaned = now if self._orphaned is None else self._orphaned
        if now - self._orphaned < PATIENCE * self._timeout:
            return []
        reason = "every learner that had the model is gone; go on from a checkpoint with --resume"
        return [{"kind": "failed", "who": str(self._fabric.address), "traceback": reason}]

    def _fail_of_a_loss(self, operations: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """What follows from losing a learner, where that ends the run."""
        if not self._fixed or self.state.failure is not None:
            return []
        for operation in operations:
            who = Address.parse(operation["who"])
            if operation["kind"] == "lost" and who in self.state.learners:
                text = f"{who.name} was lost ({operation['reason']}); go on with --resume"
                return [{"kind": "failed", "who": str(self._fabric.address), "traceback": text}]
        return []

    def _send(self, output: Output) -> None:
        if output.to == self._fabric.address:
            self._on_checkpoint(output.body)
        else:
            self._outbox.send(output)

    def _acknowledge(self, operations: list[dict[str, Any]]) -> None:
        """Tells senders, now and then, that they need not send again what is in the journal."""
        for operation in operations:
            if "sequence" in operation:
                who = Address.parse(operation["who"])
                count = self._unacknowledged.get(who, 0) + 1
                self._unacknowledged[who] = count % BEATS
                if count == BEATS:
                    body = {"kind": "ack", "sequence": self.state.acknowledged(who)}
                    self._send(Output(who, "control", body))


def serve(service: Service) -> None:
    """The coordinator's activity; ends quietly when its node is closed."""
    try:
        service.run()
    except Cancelled:
        return
