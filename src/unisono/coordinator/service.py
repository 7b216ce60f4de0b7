"""The coordinator as an activity: messages in, the journal, messages out."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from unisono.coordinator.directives import (
    Abandon,
    Acknowledged,
    CheckpointWritten,
    Failure,
    Notice,
    NotMember,
)
from unisono.coordinator.journal import Journal, NoJournal
from unisono.coordinator.membership import Membership
from unisono.coordinator.messages import (
    CONTROL,
    PORT,
    Command,
    Event,
    Failed,
    Heartbeat,
    Join,
    Leave,
    LossReason,
    Lost,
    Numbered,
    ReportMalformed,
    RequestView,
    StartWithoutMissing,
)
from unisono.coordinator.outbox import RETRY_S, Outbox
from unisono.coordinator.output import Output
from unisono.coordinator.requests import Requested, Requests
from unisono.coordinator.snapshot import freeze, recover
from unisono.coordinator.state import State
from unisono.coordinator.status import Status, whose
from unisono.errors import RESUME, Cause, UserError
from unisono.fabric.address import Address
from unisono.fabric.api import Cancelled, ConnectionLost, Fabric, Member, Rejected, TimedOut
from unisono.pool.ranges import count

BEATS = 5
"""Heartbeats in one timeout, at least."""
MOST_BEAT_S = 2.0
"""Seconds between heartbeats, at most, so that a slow learner is noticed soon."""
PATIENCE = 6
"""Timeouts to wait for the coordinator, or for the last learner that has the model."""

JOURNAL_RETRY_S = 0.5
"""Seconds between two tries to write the journal."""
STAY_S = 1.0
"""Seconds for which a restarted coordinator serves even if no learner is left."""

_TOLD = (Join, Leave, Lost, Failed, Requested)
"""Operations that are written to the metrics."""

log = logging.getLogger("unisono")

Sink = Callable[[dict[str, Any]], None]
OnCheckpoint = Callable[[CheckpointWritten], None]


class Service:
    """Runs the state machine.

    A learner that is silent for ``timeout`` seconds is declared dead. A killed process is noticed
    at once: on one host by the end of its connection, on several since nobody listens at its
    endpoint any more. With ``fixed`` any loss fails the run. A run begins when the ``expected``
    learners have joined, or without the missing ones after a while, unless it ``waits_for_all``
    because their launcher sees to it that they come. It ``announces`` losses where no launcher
    does. Events go to ``sink``, or to what ``open_sink`` makes of a path that the learners name,
    with the time since the run ``began``, which may be before a restart of the coordinator.
    ``requests`` are those of people.
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
        open_sink: Callable[[str], Sink] | None = None,
        on_checkpoint: OnCheckpoint | None = None,
        waits_for_all: bool = False,
        announces: bool = False,
        began: float | None = None,
        requests: Requests | None = None,
    ) -> None:
        self.state = State(expected)
        self._requests = requests
        self._fabric = fabric
        self._journal = journal
        self._timeout = timeout
        self._fixed = fixed
        self._waits_for_all = waits_for_all
        self._announces = announces
        self._sink = sink or (lambda event: None)
        self._open_sink = None if sink is not None else open_sink
        self._on_checkpoint = on_checkpoint or (lambda body: None)
        self._seen: dict[Address, float] = {}
        """When each learner was last heard, the longest silent first."""
        self._outbox = Outbox(fabric)
        self._membership = Membership(fabric.now)
        self._unacknowledged: dict[Address, int] = {}
        now = fabric.now()
        self._began = now if began is None else began
        self._stay_until = now
        self._looked = now
        self._deserted: float | None = None
        self._first_came: float | None = None
        self._orphaned: float | None = None
        self._disk_error = ""
        self._diverged: set[Address] = set()
        self._status: Status | None = None
        if sink is not None or open_sink is not None:
            self._status = Status(self._write_event, min(timeout / BEATS, MOST_BEAT_S))
        fabric.port(PORT, lost=True)

    def run(self) -> None:
        """Serves until all who joined have left, or none of the lost has come back in time."""
        self._replay()
        while not self.over:
            commands = self._drop_impossible(self._collect())
            commands += self._drop_malformed(commands)
            commands += self._find_silent()
            commands += self._start_without_the_missing()
            commands += self._give_up_orphans()
            commands += self._fail_after_loss(commands)
            commands += self._take_requests()
            outputs: list[Output] = []
            for command in commands:
                if isinstance(command.operation, _TOLD):
                    self._write_event_of(command)
                outputs += self.state.apply(command)
            if commands and not self._record(commands):
                outputs = self._stop_without_journal()
            if self._journal.is_long:
                self._journal.compact(freeze(self.state))
            if commands and not self.state.members:
                # Before the last learner hears that it has left, and may close the metrics.
                self._tell_status(last=True)
            for output in self._membership.tell(self.state.view) + outputs:
                self._send(output)
            self._acknowledge(commands)
            self._tell_status()
        self._deliver_last_answers()

    def _record(self, commands: list[Command]) -> bool:
        """Writes a group to the journal; its messages are sent only after that.

        While the disk is full all wait, as long as they would for a killed coordinator.
        """
        began = self._fabric.now()
        warned = False
        while True:
            try:
                self._journal.append(commands)
            except OSError as error:
                self._disk_error = error.strerror or str(error)
            else:
                if warned:
                    log.warning("unisono: the coordinator's journal is written again")
                return True
            waited = self._fabric.now() - began
            if waited > PATIENCE * self._timeout:
                return False
            if not warned:
                warned = True
                text = "unisono: the coordinator's journal cannot be written (%s): trying again"
                log.warning(text, self._disk_error)
            self._fabric.sleep(JOURNAL_RETRY_S)

    def _stop_without_journal(self) -> list[Output]:
        """What is not in the journal did not happen: the run fails, and can be resumed."""
        self._journal = NoJournal()
        reason = (
            f"the coordinator's journal could not be written for {PATIENCE * self._timeout:g} s "
            f"({self._disk_error}); make room, and {RESUME}"
        )
        failed = Failed(Cause.DISK_FULL, reason)
        return self.state.apply(Command(self._fabric.address, failed))

    def _deliver_last_answers(self) -> None:
        """Delivers the answers that leaving learners wait for; gives up after the timeout."""
        deadline = self._fabric.now() + self._timeout
        while not self._outbox.empty and self._fabric.now() < deadline:
            self._fabric.sleep(RETRY_S)
            self._outbox.flush()

    @property
    def over(self) -> bool:
        """Whether all who joined are gone, and none is expected back."""
        if self.state.joined == 0 or self.state.members:
            self._deserted = None
            return False
        now = self._fabric.now()
        if self.state.orderly:
            return now >= self._stay_until
        self._deserted = now if self._deserted is None else self._deserted
        return now - self._deserted > PATIENCE * self._timeout

    def _replay(self) -> None:
        now = self._fabric.now()
        self.state = recover(self._journal, self.state.expected)
        for who, endpoint in self.state.endpoints.items():
            self._fabric.meet(Member(who, endpoint))
        if self.state.joined:
            # The last to leave may not have heard its answer before the coordinator died.
            self._stay_until = now + STAY_S
        self._note_metrics(self.state.metrics)
        self._diverged = set(self.state.diverged)
        self._seen = dict.fromkeys(self.state.members, now)
        self._looked = now
        for output in self._membership.restart(self.state.view) + self.state.directives():
            self._send(output)

    def _collect(self) -> list[Command]:
        """Waits for a message, and takes all that have arrived."""
        commands: list[Command] = []
        if not self._outbox.empty:
            self._outbox.flush()
        patience = self._timeout / BEATS if self._outbox.empty else RETRY_S
        if not self.state.members:
            patience = min(patience, STAY_S)
        untold = self._membership.wait_s(self.state.view)
        if untold is not None:
            patience = min(patience, untold)
        while True:
            try:
                message = self._fabric.receive(PORT, timeout=patience)
            except TimedOut:
                return commands
            command = self._take(message.sender, message.body)
            if command is not None:
                commands.append(command)
            patience = 0.0

    def _take(
        self,
        sender: Address,
        body: Numbered | Heartbeat | RequestView | Event | ConnectionLost | Rejected,
    ) -> Command | None:
        if isinstance(body, Numbered):
            return self._take_operation(sender, body)
        if isinstance(body, ConnectionLost):
            return Command(body.who, Lost(LossReason.PROCESS_ENDED))
        if isinstance(body, Rejected):
            return self._drop(body.who, body.why)
        if isinstance(body, Event):
            self._write_event(body.name, body.fields)
            return None
        if isinstance(body, RequestView):
            for output in self._membership.whole(sender):
                self._send(output)
            return None
        if sender not in self.state.members:
            return self._take_from_non_member(sender, body, None)
        self._note_seen(sender)
        if self._status is not None:
            self._status.heard(sender, body.phase)
        return None

    def _take_operation(self, sender: Address, body: Numbered) -> Command | None:
        operation = body.operation
        if isinstance(operation, Failed) and self._goes_on_without(sender, operation):
            return Command(sender, Lost(LossReason.DIVERGED))
        command = Command(sender, operation, body.sequence, body.reply)
        if isinstance(operation, Join) and self.state.may_join(sender):
            self._fabric.meet(Member(sender, operation.endpoint))
        elif sender not in self.state.members:
            return self._take_from_non_member(sender, body, command)
        self._note_seen(sender)
        return command

    def _note_seen(self, who: Address) -> None:
        self._seen.pop(who, None)
        self._seen[who] = self._fabric.now()

    def _take_from_non_member(
        self, sender: Address, body: Numbered | Heartbeat, command: Command | None
    ) -> Command | None:
        """A message of a non-member, who is told so unless it joins or leaves just now."""
        if sender not in self.state.lost:
            if command is None:
                return None  # It is joining, or has just left.
            assert command.sequence is not None
            if command.sequence <= self.state.acknowledged(sender):
                return command  # It has left, and its answer was lost.
            if not self.state.may_join(sender):
                return None  # It has left; late messages of its strategy do not matter.
        where = body if isinstance(body, Heartbeat) else body.operation
        if isinstance(where, Heartbeat | Join):
            self._fabric.meet(Member(sender, where.endpoint))
        self._notify(sender, NotMember())
        return None

    def _goes_on_without(self, who: Address, failed: Failed) -> bool:
        """Whether the run goes on without a learner that has diverged.

        Others must have the model. Once half of the learners, and at least two, have diverged, the
        run has.
        """
        if failed.cause is not Cause.DIVERGED or self._fixed or self.state.failure is not None:
            return False
        if who not in self.state.members:
            return False
        self._diverged.add(who)
        others = {a for a in self.state.state_holders if not a.serves} - self._diverged
        learners = self.state.expected - len(self.state.members.servers)
        return bool(others) and len(self._diverged) < max(2, (learners + 1) // 2)

    def _drop(self, who: Address, why: str) -> Command | None:
        """Removes a learner that sends malformed messages, and tells it not to come back."""
        text = f"it sent a malformed message ({why}): is it another version of Unisono?"
        self._notify(who, Abandon(Failure(who, Cause.EXCEPTION, text)))
        return Command(who, Lost(LossReason.MALFORMED)) if who in self.state.members else None

    def _drop_impossible(self, commands: Iterable[Command]) -> list[Command]:
        """Drops members that send impossible operations, with all that they sent after."""
        kept: list[Command] = []
        dropped: set[Address] = set()
        for command in commands:
            if command.who in dropped:
                continue
            if why := self.state.objection(command):
                log.warning("unisono: %s is dropped: %s", command.who, why)
                dropped.add(command.who)
                kept += filter(None, [self._drop(command.who, why)])
            else:
                kept.append(command)
        return kept

    def _drop_malformed(self, commands: Iterable[Command]) -> list[Command]:
        """Drops learners of whose malformed messages others have complained."""
        reports = [c.operation for c in commands if isinstance(c.operation, ReportMalformed)]
        if not reports:
            return []
        dropped = [self._drop(r.who, r.why) for r in reports if r.who in self.state.members]
        return [command for command in dropped if command is not None]

    def _write_event(self, event: str, fields: dict[str, Any]) -> None:
        """Writes an event to the metrics."""
        if log.isEnabledFor(logging.DEBUG):
            log.debug("unisono: %s %s", event, fields)
        self._sink({**fields, "event": event, "time": self._fabric.now() - self._began})

    def _write_event_of(self, command: Command) -> None:
        """Writes to the metrics who joins, leaves or is lost, and why the run fails."""
        who, operation = command.who, command.operation
        if isinstance(operation, Requested):
            asked = {"learner": operation.learner, "action": operation.action.value}
            self._write_event("requested", asked)
            return
        if isinstance(operation, Join):
            self._note_metrics(operation.metrics)
        elif isinstance(operation, Lost):
            self._outbox.forget(who)
        about: dict[str, Any] = {**whose(who), "who": str(who)}
        prefix = "server_" if who.serves else ""
        is_member = who in self.state.members
        if isinstance(operation, Join) and not is_member:
            where = {"host": operation.host, "device": operation.device}
            self._write_event(prefix + "joined", {**about, "reason": "", **where})
        elif isinstance(operation, Leave) and is_member:
            self._write_event(prefix + "leaves", {**about, "reason": ""})
        elif isinstance(operation, Lost) and is_member:
            why = {"reason": str(operation), "cause": operation.reason.value}
            self._write_event(prefix + "lost", about | why)
            goes_on = self.state.failure is None and len(self.state.members) > 1
            if self._announces and goes_on:
                log.warning("unisono: %s was lost (%s); the others go on", who.name, operation)
        elif isinstance(operation, Failed) and self.state.failure is None:
            lines = operation.text.strip().splitlines() or [""]
            self._write_event(
                "failed", {**about, "reason": lines[-1], "cause": operation.cause.value}
            )

    def _note_metrics(self, path: str) -> None:
        """Opens the file that the learners named for the run's events, if none was given."""
        if path and self._open_sink is not None:
            try:
                self._sink = self._open_sink(path)
            except (OSError, UserError) as error:
                log.warning("unisono: no metrics in %s: %s", path, error)
            self._open_sink = None
            if not self.state.metrics:  # not after a restart of the coordinator
                self._write_event("start", {"learner": None, "lines": [], "simulated": False})

    def _tell_status(self, *, last: bool = False) -> None:
        now = self._fabric.now()
        if self._status is not None and (last or self._status.is_due(now)):
            seen = {who: self._seen[who] for who in self.state.members if who in self._seen}
            self._status.tell(now, self.state.pool, seen, self.state.pace)

    def _find_silent(self) -> list[Command]:
        """Declares silent learners dead.

        The last one that has the model is given longer, since its death would end the run.
        """
        now = self._fabric.now()
        if now - self._looked > self._timeout / 2:
            # The coordinator itself was paused, and heard nobody.
            self._seen = dict.fromkeys(self._seen, now)
        self._looked = now
        late = now - self._timeout
        if not self._seen or next(iter(self._seen.values())) >= late:
            return []
        silent = list(itertools.takewhile(lambda a: self._seen[a] < late, self._seen))
        for gone in [a for a in silent if a not in self.state.members]:
            silent.remove(gone)
            del self._seen[gone]
        state_holders = self.state.state_holders if silent else ()
        if state_holders and set(state_holders) <= set(silent):
            last = max(state_holders, key=lambda a: self._seen[a])
            if now - self._seen[last] < PATIENCE * self._timeout:
                silent.remove(last)
        return [Command(a, Lost(LossReason.SILENT, self._timeout)) for a in sorted(silent)]

    def _start_without_the_missing(self) -> list[Command]:
        if self.state.started or not self.state.members or self._waits_for_all:
            self._first_came = None
            return []
        now = self._fabric.now()
        self._first_came = now if self._first_came is None else self._first_came
        if now - self._first_came < PATIENCE * self._timeout:
            return []
        return [Command(self._fabric.address, StartWithoutMissing())]

    def _give_up_orphans(self) -> list[Command]:
        now = self._fabric.now()
        if not self.state.orphaned or self.state.failure is not None:
            self._orphaned = None
            return []
        self._orphaned = now if self._orphaned is None else self._orphaned
        if now - self._orphaned < PATIENCE * self._timeout:
            return []
        who = "every learner that had the model" if self.state.learners else "every learner"
        reason = f"{who} is gone; {RESUME}"
        return [Command(self._fabric.address, Failed(Cause.MODEL_LOST, reason))]

    def _fail_after_loss(self, commands: Iterable[Command]) -> list[Command]:
        """Fails a ``fixed`` run if a learner was lost."""
        if not self._fixed or self.state.failure is not None:
            return []
        for command in commands:
            who, lost = command.who, command.operation
            if isinstance(lost, Lost) and who in self.state.members:
                text = f"{who.name} was lost ({lost}); {RESUME}"
                return [Command(self._fabric.address, Failed(Cause.LEARNER_LOST, text))]
        return []

    def _take_requests(self) -> list[Command]:
        """New requests of people, once the run has begun."""
        if self._requests is None or self.state.job is None or not self.state.started:
            return []
        asked = self._requests.since(self.state.requests)
        return [Command(self._fabric.address, request) for request in asked]

    def _send(self, output: Output) -> None:
        if isinstance(output.body, CheckpointWritten):
            self._on_checkpoint(output.body)
            about = {"minibatches": count(output.body.committed), "reason": output.body.error}
            self._write_event("checkpoint", {"learner": None, **about})
        else:
            self._outbox.send(output)

    def _notify(self, who: Address, notice: Notice) -> None:
        self._send(Output(who, CONTROL.name, notice))

    def _acknowledge(self, commands: Iterable[Command]) -> None:
        """Tells senders now and then what is in the journal and need not be sent again."""
        for command in commands:
            if command.sequence is not None:
                who = command.who
                count = self._unacknowledged.get(who, 0) + 1
                self._unacknowledged[who] = count % BEATS
                if count == BEATS:
                    self._notify(who, Acknowledged(self.state.acknowledged(who)))


def serve(service: Service) -> None:
    """The coordinator's activity; ends quietly when its node is closed."""
    with suppress(Cancelled):
        service.run()
