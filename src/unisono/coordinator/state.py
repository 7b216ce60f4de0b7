"""What the coordinator knows, as a pure state machine.

``apply`` takes one operation and returns the messages that follow from it. It looks at no clock and
draws no random number, so that replaying the journal of operations leads to the same state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from unisono.coordinator.agreements import Agreements
from unisono.coordinator.checkpoints import Checkpoints
from unisono.coordinator.departed import Departed
from unisono.coordinator.job import Job
from unisono.coordinator.mail import Mail
from unisono.coordinator.output import STRATEGY, Output
from unisono.fabric.address import COORDINATOR, Address
from unisono.fabric.base import Member, View
from unisono.pool.pool import Deal, Pool
from unisono.pool.ranges import to_ranges


class State:
    """Membership, leases, deals and agreements of one run."""

    def __init__(self, expected: int) -> None:
        self.expected = expected
        self.view = View()
        self.job: Job | None = None
        self.pool = Pool(0)
        self.agreements = Agreements()
        self.lost: list[str] = []
        self.joined = 0
        self.failure: dict[str, Any] | None = None
        self._orderly = False
        self.started = False
        self._drawing = False
        self._first_agreement = 0
        self._restored: set[Address] = set()
        """Who has come with the state of the checkpoint from which the run goes on."""
        self._opened: set[Address] = set()
        self._deals: list[Deal] = []
        self._welcomed: set[Address] = set()
        self._trained_before: set[Address] = set()
        self._entering: dict[Address, dict[str, Any]] = {}
        self._asked_welcome: dict[Address, Address] = {}
        self._leaving: dict[Address, dict[str, Any]] = {}
        self._waiting: dict[Address, dict[str, Any]] = {}
        self._idle: set[Address] = set()
        self._departed = Departed()
        self._leader: Address | None = None
        self._drawn = 0
        self._checkpoints = Checkpoints()
        self._mail = Mail()

    @property
    def learners(self) -> list[Address]:
        """The living learners, in the members' order."""
        return self.view.addresses()

    def apply(self, operation: Mapping[str, Any]) -> list[Output]:
        """Takes one operation of a member (or, without ``sequence``, of the service itself)."""
        who = Address.parse(operation["who"])
        if "sequence" in operation:
            if not self._mail.is_next(who, operation):
                return self._mail.repeat(who, operation)
            if operation["kind"] != "join" and who not in self.learners:
                return []  # It has left, or was lost, while this was on its way.
            self._mail.take(who, operation)
        handler = getattr(self, "_on_" + operation["kind"])
        handler(who, operation)
        self._advance()
        return self._mail.out()

    @property
    def orderly(self) -> bool:
        """Whether the last one who went has left, and was not lost."""
        return self._orderly or self.pool.over or self.failure is not None

    def may_join(self, who: Address) -> bool:
        """Whether this incarnation has not been here before."""
        return not self._mail.knows(who) or who in self.learners

    def acknowledged(self, who: Address) -> int:
        """The last operation of a member that is in the state."""
        return self._mail.last(who)

    def directives(self) -> list[Output]:
        """What the living must be told again when the coordinator comes back from its journal."""
        self._tell_view()
        for newcomer, sponsor in self._asked_welcome.items():
            self._tell(sponsor, STRATEGY, {"kind": "welcome", "to": str(newcomer)})
        if self.job is not None and self.job.division == "drawn":
            self._tell_close()
            self._tell_cut()
            self._tell_after_cut(self._checkpoints.keeping)
        for supply in self.agreements.supplies:
            self._mail.send(supply)
        return self._mail.out()

    # Members.

    def _on_join(self, who: Address, op: Mapping[str, Any]) -> None:
        members = (*self.view.members, Member(who, op["endpoint"]))
        self._set_members(tuple(sorted(members)))
        self.joined += 1
        self._mail.answer(who, op, {"kind": "admitted"})

    def _on_open(self, who: Address, op: Mapping[str, Any]) -> None:
        job = Job(**op["job"])
        is_new = self.job is None
        if self.job is None:
            self.job = job
            self.pool = Pool(job.total, [tuple(r) for r in op["settled"]])
            self.agreements.start(op["agreement"])
            self._first_agreement = self._checkpoints.number = op["agreement"]
        if job != self.job:
            reason = f"the learners differ in {self.job.differences(job)}"
            self._mail.answer(who, op, {"kind": "refused", "reason": reason})
            return
        self._opened.add(who)
        if op["agreement"] == self._first_agreement > 0:
            self._restored.add(who)
        self._mail.answer(who, op, {"kind": "opened", "new": is_new})

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
        self._mail.answer(who, op, {"kind": "left"})
        self._remove(who)

    def _on_leave(self, who: Address, op: Mapping[str, Any]) -> None:
        self._leaving[who] = dict(op)

    def _on_sync(self, who: Address, op: Mapping[str, Any]) -> None:
        """All that the member has told before is here."""
        self._mail.answer(who, op, {"kind": "synced"})

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
        self.agreements.remove(who)
        if self._checkpoints.cutting:
            self._checkpoints.give_up()
            self._tell_after_cut(None)
        witnesses = [a for a in self.learners if a in self._welcomed]
        self._departed.add(who, [*witnesses, *self._asked_welcome] if self._by_word else [])

    @property
    def _by_word(self) -> bool:
        """Drawn, and each settles by its own word: others may have the work of the dead."""
        job = self.job
        return job is not None and job.division == "drawn" and not job.agrees

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

    def _on_deal(self, who: Address, op: Mapping[str, Any]) -> None:
        self._waiting[who] = dict(op)

    _on_draw = _on_deal

    def _on_idle(self, who: Address, op: Mapping[str, Any]) -> None:
        self._idle.add(who)

    def _on_settle(self, who: Address, op: Mapping[str, Any]) -> None:
        """Work whose effect is in state that survives its learner; ``notes`` has it by owner."""
        for owner, note in op["notes"].items():
            ranges = to_ranges(note)
            self.pool.settle(Address.parse(owner), ranges)
            self._checkpoints.add(Address.parse(owner), ranges)

    def _on_cut(self, who: Address, op: Mapping[str, Any]) -> None:
        self._checkpoints.cut(who, op["agreement"], to_ranges(op["ranges"]))
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

    # Agreements.

    def _on_completed(self, who: Address, op: Mapping[str, Any]) -> None:
        self.agreements.complete(who, op["agreement"], op.get("notes"))

    def _on_stand(self, who: Address, op: Mapping[str, Any]) -> None:
        self.agreements.stand(who, op["agreement"], dict(op))

    def _on_enter(self, who: Address, op: Mapping[str, Any]) -> None:
        self._asked_welcome.pop(who, None)
        self._entering[who] = dict(op)

    def _on_welcomed(self, who: Address, op: Mapping[str, Any]) -> None:
        """If its sponsor died, the others may have agreed without it since: then once more."""
        self._asked_welcome.pop(who, None)
        current = op["rounds"] == self.agreements.resolved and not self.agreements.open
        current = current or self._by_word
        if current:
            self._let_in(who)
        self._mail.answer(who, op, {"kind": "in" if current else "again"})

    def _let_in(self, who: Address) -> None:
        """Drawn: the learner has the run's parameters."""
        self._welcomed.add(who)
        self.agreements.enter(who)

    @property
    def keepers(self) -> list[Address]:
        """The living learners that have the run's parameters.

        Dealt: the members of the last deal; its newcomers once they have completed a round, or if
        nobody else is left.
        """
        if self.job is not None and self.job.division == "drawn":
            return [a for a in self.learners if a in self._welcomed]
        if not self._deals:
            return []
        deal = self._deals[-1]
        members = [a for a in self.learners if a in deal.members]
        sure = [
            a
            for a in members
            if a not in deal.newcomers or self.agreements.has_completed(a, deal.first)
        ]
        return sure or members

    def _first_sponsor(self, candidates: Sequence[Address]) -> Address | None:
        """Who may begin with its own parameters when nobody living has the run's.

        Only before anything is settled: later, what is settled would be lost unseen. And only a
        learner that has not trained in an earlier life: what it trained then was returned, and
        would come in twice.
        """
        if self.pool.counts.settled:
            return None
        fresh = [a for a in self.learners if a._replace(incarnation=0) not in self._trained_before]
        first = min(fresh, default=None)
        return first if first in candidates else None

    @property
    def orphaned(self) -> bool:
        """Whether there are learners, and none of them has the run's parameters or may begin."""
        if not self.learners or not self.started or self.pool.over or self.keepers:
            return False
        return self._first_sponsor(self.learners) is None

    # What follows.

    def _advance(self) -> None:
        if self.failure is not None:
            return
        self._settle_agreed()
        self._regroup()
        for who in self._departed.freed(self.agreements.may_contain):
            self.pool.give_all_back(who)
        if len(self.learners) >= self.expected:
            self.started = True
        if self.job is not None and self.started:
            if self.job.division == "dealt":
                self._deal()
            else:
                self._welcome()
                self._draw()
        self._let_leave()

    def _settle_agreed(self) -> None:
        before = self.agreements.resolved
        for notes in self.agreements.resolve(self.learners):
            for owner, ranges in notes.items():
                self.pool.settle(Address.parse(owner), [(a, b) for a, b in ranges])
        self._checkpoints.fix(before, self.agreements.resolved, self.pool.settled)

    def _on_part(self, who: Address, op: Mapping[str, Any]) -> None:
        """A learner has written its part of a checkpoint; the last one makes it whole."""
        number = op["agreement"]
        settled = self._checkpoints.part(who, number, self.learners)
        if settled is not None:
            body = {
                "kind": "checkpoint",
                "folder": op["folder"],
                "keep": op["keep"],
                "pool": {
                    "settled": [list(r) for r in settled or self.pool.settled],
                    "agreement": number + 1,
                },
            }
            self._tell(COORDINATOR, "checkpoint", body)

    def _regroup(self) -> None:
        for who, request, body in self.agreements.regroup(self.learners, self._mail.send):
            self._mail.answer(who, request, body)

    def _let_leave(self) -> None:
        """Drawn: after every agreement that counts the leaver. Dealt: others do it without."""
        dealt = self.job is not None and self.job.division == "dealt"
        for who, request in list(self._leaving.items()):
            if dealt or self.pool.over or not self.agreements.may_contain(who):
                self._mail.answer(who, request, {"kind": "left"})
                self._orderly = True
                self._remove(who)

    def _deal(self) -> None:
        assert self.job is not None
        goes_on = self._first_agreement > 0 and not self._deals
        if goes_on and any(a not in self._opened for a in self.learners):
            return  # who has joined says next whether it has the state of the run already
        for who, request in sorted(self._waiting.items()):
            number = request["number"]
            if number is None:
                number = next((d.number for d in self._deals if who in d.members), len(self._deals))
            if number == len(self._deals) and self.pool.free:
                self._make_deal()
            if number < len(self._deals) and who in self._deals[number].members:
                del self._waiting[who]
                self._mail.answer(who, request, {"kind": "deal", **self._deals[number].to_body()})
            elif self.pool.over:
                del self._waiting[who]
                self._mail.answer(who, request, self._over())
            elif not request["patient"]:
                del self._waiting[who]
                self._mail.answer(who, request, {"kind": "wait"})

    def _over(self) -> dict[str, Any]:
        """Everything is settled; the first who has the model is to see to it."""
        if self._leader is None:
            members = set(self._deals[-1].members) if self._deals else self._welcomed
            if self.pool.counts.leased == 0:
                # Everything was settled before: all have the model from their checkpoint.
                members = set(self.learners)
            self._leader = next((a for a in self.learners if a in members), None)
        return {"kind": "over", "leader": self._leader and str(self._leader)}

    def _make_deal(self) -> None:
        assert self.job is not None
        before = set(self._deals[-1].members) if self._deals else self._restored
        newcomers = [a for a in self.learners if a not in before]
        old = [a for a in self.learners if a in before]
        sponsor = old[0] if old else self._first_sponsor(newcomers)
        if sponsor is None:
            return
        first = self._deals[-1].first + self._deals[-1].rounds if self._deals else None
        deal = self.pool.deal(
            len(self._deals),
            self.agreements.resolved if first is None else first,
            self.learners,
            self.job.share,
            self.job.rounds,
            [a for a in newcomers if a != sponsor],
            sponsor,
        )
        self._deals.append(deal)
        if self.job.agrees:
            self.agreements.expect(deal.first, deal.first + deal.rounds, list(deal.members))

    def _welcome(self) -> None:
        """Drawn: a newcomer gets the state of a living learner, between two agreements."""
        if self.agreements.open:
            return
        for who, request in sorted(self._entering.items()):
            sponsor = min(self._welcomed, default=None)
            if self.pool.over:
                del self._entering[who]
                self._mail.answer(who, request, {"kind": "over"})
                continue
            if who in self._restored and not self.pool.counts.settled:
                sponsor = None  # It comes with its own part of the run's state.
            elif sponsor is None and who != self._first_sponsor([who]):
                continue
            del self._entering[who]
            self._mail.answer(who, request, {"kind": "enter", "sponsor": sponsor and str(sponsor)})
            if sponsor is None:
                self._let_in(who)
            else:
                self._asked_welcome[who] = sponsor
                self._tell(sponsor, STRATEGY, {"kind": "welcome", "to": str(who)})

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
                ranges = self.pool.draw(who, request["want"], len(self.learners))
                self._drawn += sum(b - a for a, b in ranges)
                body = {"kind": "lease", "ranges": [list(r) for r in ranges]}
            elif not request["patient"]:
                body = {"kind": "wait"}
            else:
                continue
            del self._waiting[who]
            if body["kind"] == "lease":
                self._idle.discard(who)
            self._mail.answer(who, request, body)
        if not self.job.agrees:
            if not self._checkpoints.cutting and self._checkpoint_due():
                self._checkpoints.order(sorted(self._welcomed), self.pool.settled)
                self._tell_cut()
            return
        spent = self._drawn >= self.job.share * len(self._welcomed)
        dry = bool(self._welcomed) and all(who in self._idle for who in self._welcomed)
        if (spent or (dry and not self.pool.over)) and not self.agreements.open:
            self._drawn = 0
            self._open_agreement()

    def _may_draw(self, who: Address) -> bool:
        """At the start one learner may have to train by itself until all of that is settled."""
        assert self.job is not None
        return len(self.pool.settled) >= self.job.alone or who == min(self._welcomed)

    def _open_agreement(self) -> None:
        if not any(self.pool.held.get(a) for a in [*self._welcomed, *self._departed.held]):
            return
        number = self.agreements.resolved
        self.agreements.expect(number, number + 1, sorted(self._welcomed))
        if self._checkpoint_due():
            self._checkpoints.keeping = number
        self._tell_close()

    def _checkpoint_due(self) -> bool:
        assert self.job is not None
        return self._checkpoints.due(self.job.checkpoint_every, len(self.pool.settled))

    def _tell_cut(self) -> None:
        """Drawn, by word: everybody keeps its model as it is."""
        if self._checkpoints.cutting:
            for member in sorted(self._welcomed):
                number = self._checkpoints.keeping
                self._tell(member, STRATEGY, {"kind": "cut", "agreement": number})

    def _tell_close(self) -> None:
        """Drawn: the quota is spent, and everybody contributes what it has finished."""
        members = self.agreements.participants(self.agreements.resolved) or []
        body = {
            "kind": "close",
            "agreement": self.agreements.resolved,
            "members": [str(a) for a in members],
            "checkpoint": self._checkpoints.keeping == self.agreements.resolved,
        }
        for member in members:
            if member in self.learners:
                self._tell(member, STRATEGY, body)

    # Messages.

    def _tell(self, to: Address, port: str, body: dict[str, Any]) -> None:
        self._mail.send(Output(to, port, body))
