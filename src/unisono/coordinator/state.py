"""What the coordinator knows, as a pure state machine.

``apply`` takes one operation and returns the messages that follow from it. It looks at no clock and
draws no random number, so that replaying the journal of operations leads to the same state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from unisono.coordinator.checkpoints import Checkpoints
from unisono.coordinator.delivery import Delivery
from unisono.coordinator.departed import Departed
from unisono.coordinator.job import Job
from unisono.coordinator.output import STRATEGY, Output
from unisono.coordinator.sync_rounds import SyncRounds
from unisono.fabric.address import COORDINATOR, Address
from unisono.fabric.api import Member, View
from unisono.pool.pool import Assignment, Pool
from unisono.pool.ranges import to_ranges


class State:
    """Membership, leases, assignments and sync rounds of one run."""

    def __init__(self, expected: int) -> None:
        self.expected = expected
        self.view = View()
        self.job: Job | None = None
        self.pool = Pool(0)
        self.sync_rounds = SyncRounds()
        self.lost: list[str] = []
        self.joined = 0
        self.failure: dict[str, Any] | None = None
        self._orderly = False
        self.started = False
        self._drawing = False
        self._first_round = 0
        self._restored: set[Address] = set()
        """Who has come with the state of the checkpoint from which the run goes on."""
        self._opened: set[Address] = set()
        self._assignments: list[Assignment] = []
        self._welcomed: set[Address] = set()
        self._trained_before: set[Address] = set()
        self._entering: dict[Address, dict[str, Any]] = {}
        self._asked_welcome: dict[Address, Address] = {}
        self._leaving: dict[Address, dict[str, Any]] = {}
        self._waiting: dict[Address, dict[str, Any]] = {}
        self._idle: set[Address] = set()
        self._departed = Departed()
        self._leader: Address | None = None
        self._dynamic = 0
        self._checkpoints = Checkpoints()
        self._delivery = Delivery()

    @property
    def learners(self) -> list[Address]:
        """The living learners, in the members' order."""
        return self.view.addresses()

    def apply(self, operation: Mapping[str, Any]) -> list[Output]:
        """Takes one operation of a member (or, without ``sequence``, of the service itself)."""
        who = Address.parse(operation["who"])
        if "sequence" in operation:
            if not self._delivery.is_next(who, operation):
                return self._delivery.repeat(who, operation)
            if operation["kind"] != "join" and who not in self.learners:
                return []  # It has left, or was lost, while this was on its way.
            self._delivery.take(who, operation)
        handler = getattr(self, "_on_" + operation["kind"])
        handler(who, operation)
        self._advance()
        return self._delivery.out()

    @property
    def orderly(self) -> bool:
        """Whether the last one who went has left, and was not lost."""
        return self._orderly or self.pool.over or self.failure is not None

    def may_join(self, who: Address) -> bool:
        """Whether this incarnation has not been here before."""
        return not self._delivery.knows(who) or who in self.learners

    def acknowledged(self, who: Address) -> int:
        """The last operation of a member that is in the state."""
        return self._delivery.last(who)

    def directives(self) -> list[Output]:
        """What the living must be told again when the coordinator comes back from its journal."""
        self._tell_view()
        for newcomer, donor in self._asked_welcome.items():
            self._tell(donor, STRATEGY, {"kind": "welcome", "to": str(newcomer)})
        if self.job is not None and self.job.sharding == "dynamic":
            self._tell_close()
            self._tell_cut()
            self._tell_after_cut(self._checkpoints.keeping)
        for supply in self.sync_rounds.supplies:
            self._delivery.send(supply)
        return self._delivery.out()

    # Members.

    def _on_join(self, who: Address, op: Mapping[str, Any]) -> None:
        members = (*self.view.members, Member(who, op["endpoint"]))
        self._set_members(tuple(sorted(members)))
        self.joined += 1
        self._delivery.answer(who, op, {"kind": "admitted"})

    def _on_open(self, who: Address, op: Mapping[str, Any]) -> None:
        job = Job(**op["job"])
        is_new = self.job is None
        if self.job is None:
            self.job = job
            self.pool = Pool(job.total, [tuple(r) for r in op["committed"]])
            self.sync_rounds.start(op["sync_round"])
            self._first_round = self._checkpoints.number = op["sync_round"]
        if job != self.job:
            reason = f"the learners differ in {self.job.differences(job)}"
            self._delivery.answer(who, op, {"kind": "refused", "reason": reason})
            return
        self._opened.add(who)
        if op["sync_round"] == self._first_round > 0:
            self._restored.add(who)
        self._delivery.answer(who, op, {"kind": "opened", "new": is_new})

    def _on_start(self, who: Address, op: Mapping[str, Any]) -> None:
        """Not all who were expected have come; the run begins without them."""
        self.started = True
        self.expected = len(self.learners)

    def _on_lost(self, who: Address, op: Mapping[str, Any]) -> None:
        if who not in self.learners:
            return
        self.lost.append(str(who))
        self._orderly = False
        if who in self.pool.held:
            self._trained_before.add(who._replace(incarnation=0))
        self._remove(who)

    def _on_retire(self, who: Address, op: Mapping[str, Any]) -> None:
        """It has trained nothing, because it did not get its state; it comes back as a newcomer."""
        self._orderly = False
        self._delivery.answer(who, op, {"kind": "left"})
        self._remove(who)

    def _on_leave(self, who: Address, op: Mapping[str, Any]) -> None:
        self._leaving[who] = dict(op)

    def _on_sync(self, who: Address, op: Mapping[str, Any]) -> None:
        """All that the member has told before is here."""
        self._delivery.answer(who, op, {"kind": "synced"})

    def _on_failed(self, who: Address, op: Mapping[str, Any]) -> None:
        if self.failure is None:
            self.failure = {"who": str(who), "traceback": op["traceback"]}
            for learner in self.learners:
                self._tell(learner, "control", {"kind": "abandon", **self.failure})

    def _remove(self, who: Address) -> None:
        self._set_members(tuple(m for m in self.view.members if m.address != who))
        self._welcomed.discard(who)
        self._entering.pop(who, None)
        self._idle.discard(who)
        self._waiting.pop(who, None)
        self._leaving.pop(who, None)
        self._asked_welcome = {
            new: old for new, old in self._asked_welcome.items() if who not in (new, old)
        }
        self.sync_rounds.remove(who)
        if self._checkpoints.cutting:
            self._checkpoints.give_up()
            self._tell_after_cut(None)
        witnesses = [a for a in self.learners if a in self._welcomed]
        self._departed.add(who, [*witnesses, *self._asked_welcome] if self._by_word else [])

    @property
    def _by_word(self) -> bool:
        """Dynamic sharding without sync rounds: others may have the work of the dead."""
        job = self.job
        return job is not None and job.sharding == "dynamic" and not job.commits_by_round

    def _on_closed(self, who: Address, op: Mapping[str, Any]) -> None:
        """The member has told all that it has of one that is gone."""
        self._departed.close(Address.parse(op["gone"]), who)

    def _set_members(self, members: tuple[Member, ...]) -> None:
        self.view = View(self.view.version + 1, members)
        self._tell_view()

    def _tell_view(self) -> None:
        for learner in self.learners:
            self._tell(learner, "control", {"kind": "view", **self.view.to_body()})

    # The pool.

    def _on_assignment(self, who: Address, op: Mapping[str, Any]) -> None:
        self._waiting[who] = dict(op)

    _on_draw = _on_assignment

    def _on_idle(self, who: Address, op: Mapping[str, Any]) -> None:
        self._idle.add(who)

    def _on_commit(self, who: Address, op: Mapping[str, Any]) -> None:
        """Work whose effect is in state that survives its learner; ``notes`` has it by owner."""
        for owner, note in op["notes"].items():
            ranges = to_ranges(note)
            self.pool.commit(Address.parse(owner), ranges)
            self._checkpoints.add(Address.parse(owner), ranges)

    def _on_cut(self, who: Address, op: Mapping[str, Any]) -> None:
        self._checkpoints.cut(who, op["sync_round"], to_ranges(op["ranges"]))
        self._tell_after_cut(self._checkpoints.keeping)

    def _tell_after_cut(self, keep: int | None) -> None:
        """All have cut, or it was given up: whoever holds back its work may go on."""
        if not self._checkpoints.cutting:
            for member in sorted(self._welcomed):
                self._tell(member, STRATEGY, {"kind": "go on", "keep": keep})

    def _on_skip(self, who: Address, op: Mapping[str, Any]) -> None:
        self.pool.skip(who, to_ranges(op["ranges"]))

    def _on_return(self, who: Address, op: Mapping[str, Any]) -> None:
        """What it computed came too late to be used."""
        self.pool.give_back(who, to_ranges(op["ranges"]), suspect=False)
        self.pool.counts.dropped += sum(b - a for a, b in to_ranges(op["ranges"]))

    # Sync rounds.

    def _on_completed(self, who: Address, op: Mapping[str, Any]) -> None:
        self.sync_rounds.complete(who, op["sync_round"], op.get("notes"))

    def _on_stand(self, who: Address, op: Mapping[str, Any]) -> None:
        self.sync_rounds.stand(who, op["sync_round"], dict(op))

    def _on_enter(self, who: Address, op: Mapping[str, Any]) -> None:
        self._asked_welcome.pop(who, None)
        self._entering[who] = dict(op)

    def _on_welcomed(self, who: Address, op: Mapping[str, Any]) -> None:
        """If its donor died, the others may have agreed without it since: then once more."""
        self._asked_welcome.pop(who, None)
        current = op["rounds"] == self.sync_rounds.resolved and not self.sync_rounds.open
        current = current or self._by_word
        if current:
            self._let_in(who)
        self._delivery.answer(who, op, {"kind": "in" if current else "again"})

    def _let_in(self, who: Address) -> None:
        """Dynamic sharding: the learner has the run's parameters."""
        self._welcomed.add(who)
        self.sync_rounds.enter(who)

    @property
    def state_holders(self) -> list[Address]:
        """The living learners that have the run's parameters.

        Static sharding: the members of the last assignment; its newcomers once they have completed
        a round, or if nobody else is left.
        """
        if self.job is not None and self.job.sharding == "dynamic":
            return [a for a in self.learners if a in self._welcomed]
        if not self._assignments:
            return []
        assignment = self._assignments[-1]
        members = [a for a in self.learners if a in assignment.members]
        sure = [
            a
            for a in members
            if a not in assignment.newcomers or self.sync_rounds.has_completed(a, assignment.first)
        ]
        return sure or members

    def _first_donor(self, candidates: Sequence[Address]) -> Address | None:
        """Who may begin with its own parameters when nobody living has the run's.

        Only before anything is committed: later, what is committed would be lost unseen. And only a
        learner that has not trained in an earlier life: what it trained then was returned, and
        would come in twice.
        """
        if self.pool.counts.committed:
            return None
        fresh = [a for a in self.learners if a._replace(incarnation=0) not in self._trained_before]
        first = min(fresh, default=None)
        return first if first in candidates else None

    @property
    def orphaned(self) -> bool:
        """Whether there are learners, and none of them has the run's parameters or may begin."""
        if not self.learners or not self.started or self.pool.over or self.state_holders:
            return False
        return self._first_donor(self.learners) is None

    # What follows.

    def _advance(self) -> None:
        if self.failure is not None:
            return
        self._commit_agreed()
        self._regroup()
        for who in self._departed.freed(self.sync_rounds.may_contain):
            self.pool.give_all_back(who)
        if len(self.learners) >= self.expected:
            self.started = True
        if self.job is not None and self.started:
            if self.job.sharding == "static":
                self._assign()
            else:
                self._welcome()
                self._draw()
        self._let_leave()

    def _commit_agreed(self) -> None:
        before = self.sync_rounds.resolved
        for notes in self.sync_rounds.resolve(self.learners):
            for owner, ranges in notes.items():
                self.pool.commit(Address.parse(owner), [(a, b) for a, b in ranges])
        self._checkpoints.fix(before, self.sync_rounds.resolved, self.pool.committed)

    def _on_part(self, who: Address, op: Mapping[str, Any]) -> None:
        """A learner has written its part of a checkpoint; the last one makes it whole."""
        number = op["sync_round"]
        committed = self._checkpoints.part(who, number, self.learners)
        if committed is not None:
            body = {
                "kind": "checkpoint",
                "folder": op["folder"],
                "keep": op["keep"],
                "pool": {
                    "committed": [list(r) for r in committed or self.pool.committed],
                    "sync_round": number + 1,
                },
            }
            self._tell(COORDINATOR, "checkpoint", body)

    def _regroup(self) -> None:
        for who, request, body in self.sync_rounds.regroup(self.learners, self._delivery.send):
            self._delivery.answer(who, request, body)

    def _let_leave(self) -> None:
        """Dynamic sharding: after every sync round that counts the leaver; static: at once."""
        static = self.job is not None and self.job.sharding == "static"
        for who, request in list(self._leaving.items()):
            if static or self.pool.over or not self.sync_rounds.may_contain(who):
                self._delivery.answer(who, request, {"kind": "left"})
                self._orderly = True
                self._remove(who)

    def _assign(self) -> None:
        assert self.job is not None
        goes_on = self._first_round > 0 and not self._assignments
        if goes_on and any(a not in self._opened for a in self.learners):
            return  # who has joined says next whether it has the state of the run already
        for who, request in sorted(self._waiting.items()):
            number = request["number"]
            if number is None:
                number = next(
                    (d.number for d in self._assignments if who in d.members),
                    len(self._assignments),
                )
            if number == len(self._assignments) and self.pool.free:
                self._make_assignment()
            if number < len(self._assignments) and who in self._assignments[number].members:
                del self._waiting[who]
                self._delivery.answer(
                    who, request, {"kind": "assignment", **self._assignments[number].to_body()}
                )
            elif self.pool.over:
                del self._waiting[who]
                self._delivery.answer(who, request, self._over())
            elif not request["patient"]:
                del self._waiting[who]
                self._delivery.answer(who, request, {"kind": "wait"})

    def _over(self) -> dict[str, Any]:
        """Everything is committed; the first who has the model is to see to it."""
        if self._leader is None:
            members = set(self._assignments[-1].members) if self._assignments else self._welcomed
            if self.pool.counts.leased == 0:
                # Everything was committed before: all have the model from their checkpoint.
                members = set(self.learners)
            self._leader = next((a for a in self.learners if a in members), None)
        return {"kind": "over", "leader": self._leader and str(self._leader)}

    def _make_assignment(self) -> None:
        assert self.job is not None
        before = set(self._assignments[-1].members) if self._assignments else self._restored
        newcomers = [a for a in self.learners if a not in before]
        old = [a for a in self.learners if a in before]
        donor = old[0] if old else self._first_donor(newcomers)
        if donor is None:
            return
        first = (
            self._assignments[-1].first + self._assignments[-1].rounds
            if self._assignments
            else None
        )
        assignment = self.pool.assign(
            len(self._assignments),
            self.sync_rounds.resolved if first is None else first,
            self.learners,
            self.job.share,
            self.job.rounds,
            [a for a in newcomers if a != donor],
            donor,
        )
        self._assignments.append(assignment)
        if self.job.commits_by_round:
            self.sync_rounds.expect(
                assignment.first, assignment.first + assignment.rounds, list(assignment.members)
            )

    def _welcome(self) -> None:
        """Dynamic sharding: a newcomer gets a living learner's state, between two sync rounds."""
        if self.sync_rounds.open:
            return
        for who, request in sorted(self._entering.items()):
            donor = min(self._welcomed, default=None)
            if self.pool.over:
                del self._entering[who]
                self._delivery.answer(who, request, {"kind": "over"})
                continue
            if who in self._restored and not self.pool.counts.committed:
                donor = None  # It comes with its own part of the run's state.
            elif donor is None and who != self._first_donor([who]):
                continue
            del self._entering[who]
            self._delivery.answer(who, request, {"kind": "enter", "donor": donor and str(donor)})
            if donor is None:
                self._let_in(who)
            else:
                self._asked_welcome[who] = donor
                self._tell(donor, STRATEGY, {"kind": "welcome", "to": str(who)})

    def _draw(self) -> None:
        assert self.job is not None
        missing = any(a not in self._welcomed for a in self.learners)
        if self._asked_welcome or (missing and not self._drawing):
            return
        self._drawing = True
        for who, request in list(self._waiting.items()):
            if self.pool.over:
                body = self._over()
            elif self.pool.free and self._may_draw(who):
                ranges = self.pool.lease(who, request["want"], len(self.learners))
                self._dynamic += sum(b - a for a, b in ranges)
                body = {"kind": "lease", "ranges": [list(r) for r in ranges]}
            elif not request["patient"]:
                body = {"kind": "wait"}
            else:
                continue
            del self._waiting[who]
            if body["kind"] == "lease":
                self._idle.discard(who)
            self._delivery.answer(who, request, body)
        if not self.job.commits_by_round:
            if not self._checkpoints.cutting and self._checkpoint_due():
                self._checkpoints.order(sorted(self._welcomed), self.pool.committed)
                self._tell_cut()
            return
        spent = self._dynamic >= self.job.share * len(self._welcomed)
        dry = bool(self._welcomed) and all(who in self._idle for who in self._welcomed)
        if (spent or (dry and not self.pool.over)) and not self.sync_rounds.open:
            self._dynamic = 0
            self._open_round()

    def _may_draw(self, who: Address) -> bool:
        """At the start one learner may have to train by itself until all of that is committed."""
        assert self.job is not None
        return len(self.pool.committed) >= self.job.alone or who == min(self._welcomed)

    def _open_round(self) -> None:
        if not any(self.pool.held.get(a) for a in [*self._welcomed, *self._departed.held]):
            return
        number = self.sync_rounds.resolved
        self.sync_rounds.expect(number, number + 1, sorted(self._welcomed))
        if self._checkpoint_due():
            self._checkpoints.keeping = number
        self._tell_close()

    def _checkpoint_due(self) -> bool:
        assert self.job is not None
        return self._checkpoints.due(self.job.checkpoint_every, len(self.pool.committed))

    def _tell_cut(self) -> None:
        """Dynamic sharding, by word: everybody keeps its model as it is."""
        if self._checkpoints.cutting:
            for member in sorted(self._welcomed):
                number = self._checkpoints.keeping
                self._tell(member, STRATEGY, {"kind": "cut", "sync_round": number})

    def _tell_close(self) -> None:
        """Dynamic sharding: the quota is spent, and everybody contributes what it has finished."""
        members = self.sync_rounds.participants(self.sync_rounds.resolved) or []
        body = {
            "kind": "close",
            "sync_round": self.sync_rounds.resolved,
            "members": [str(a) for a in members],
            "checkpoint": self._checkpoints.keeping == self.sync_rounds.resolved,
        }
        for member in members:
            if member in self.learners:
                self._tell(member, STRATEGY, body)

    # Messages.

    def _tell(self, to: Address, port: str, body: dict[str, Any]) -> None:
        self._delivery.send(Output(to, port, body))
