"""What one member has of a server's model: the shards that it holds, and a copy of all."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from unisono.fabric import (
    Address,
    Addresses,
    Gone,
    Message,
    Precision,
    TypedPort,
    Vector,
    from_plain,
    to_plain,
)
from unisono.pool.ranges import Ranges, merge, subtract
from unisono.strategies.base import Replica, StateBundle, Updater
from unisono.strategies.engines.pushes import ServerSettings
from unisono.strategies.engines.server_codec import PullCodec
from unisono.strategies.engines.server_messages import (
    PORT,
    SHOWN,
    Backup,
    Copies,
    CopiesWanted,
    Dropped,
    Moved,
    Pulled,
    PushPiece,
    ServerState,
    ShardState,
    Show,
    Shown,
)
from unisono.strategies.engines.shards import Copy, Run, Shard, bounds, holder, runs

B = TypeVar("B")


class ShardStore:
    """Shards that are moved by a change of the members, and those who want something of them.

    Who holds a shard is a function of the members (``shards.holder``). Whoever comes to hold one
    asks all others what they have of it: the one who held it, if it lives, has the newest; else
    the newest is what a living learner pulled last, and that contains every push which a living
    learner knows to be applied. A push whose reply was lost with the holder is sent again, and is
    told from one that is in it by its number. What optimizers remember (momentum) and the running
    mean begin anew in a shard that moves.

    A request that comes too early (from a member that has seen a newer view, or for a shard that
    is not complete yet) waits here; one that comes too late is answered with ``Moved``.
    """

    def __init__(
        self,
        replica: Replica,
        settings: ServerSettings,
        make_updater: Callable[[Vector, int], Updater],
        averages_from: float | None,
    ) -> None:
        self._replica = replica
        self._make_updater = make_updater
        self._fabric = replica.fabric
        self._count = shards = settings.shards
        self._precision = settings.precision
        self.pull_codec = PullCodec(settings.precision)
        self._averages_from = averages_from
        self._shards: dict[int, Shard] = {}
        self._asked: dict[int, set[Address]] = {}
        self._kept: dict[int, StateBundle] = {}
        """What a checkpoint has of shards beside their values."""
        self._held: list[Callable[[], bool]] = []
        """Requests that could not be served yet, each a function that tries again."""
        self._begun = False
        self.copies = [Copy() for _ in range(shards)]
        """What ``model`` is a copy of."""
        self.began = True
        """Whether what it is of shards of version 0 is the model with which the run began."""
        self._known = [Copy(generation=-1) for _ in range(shards)]
        self.holds_back: Callable[[PushPiece], bool] = lambda push: False
        """Whether a push must wait, whatever shard it is for."""
        self._given: dict[int, int] = {}
        """The newest version of each shard here that another member was sent."""
        self._members = Addresses()
        self._orphans: set[int] = set()
        """Shards that come here because their holder is gone."""
        self._rolled_back: dict[int, int] = {}
        """Updates that such a shard lost; told when it is used: at an orderly end none is."""

    # The model.

    def begin(self, model: Vector) -> None:
        """This learner has a model: that with which it begins, or a donor's copy."""
        self.model = model
        self._values = model.copy()
        self._begun = True
        self.change_view()
        self._kept = {shard: self._kept[shard] for shard in self._kept if shard in self._asked}

    def is_initial(self, run: Run) -> bool:
        """Whether ``model`` has a run of shards as the run of learners began."""
        return self.began and all(self.copies[shard].version == 0 for shard in range(*run))

    def take(self, pulled: Pulled, sender: Address, vector: Vector | None) -> None:
        """Takes newer values of a run over into ``model``."""
        part, answer = self._part(self.model, pulled.run), (sender, pulled.answer)
        self.pull_codec.take(part, pulled.run, answer, vector, difference=pulled.difference)
        for shard, copy in zip(range(*pulled.run), pulled.copies, strict=True):
            self.copies[shard] = copy

    # What survives this member.

    @property
    def complete(self) -> bool:
        """Whether all shards that are to be here are."""
        return not self._asked

    def work_of(self, gone: Address) -> Ranges:
        """The last work of one who is gone that is in the model as it is known here."""
        return merge(*(self._newest(n).notes.get(gone, ()) for n in range(self._count)))

    def forget(self, gone: Address, note: Ranges) -> None:
        """The coordinator knows this work of one who is gone."""
        for number in range(self._count):
            notes = self._newest(number).notes
            left = subtract(notes.pop(gone, ()), note)
            if left:
                notes[gone] = left

    def _newest(self, number: int) -> Copy:
        """What would be handed on if this shard had to be restored."""
        known = self._shards[number].copy if number in self._shards else self._known[number]
        return known if known.newer_than(self.copies[number]) else self.copies[number]

    def versions(self) -> dict[int, int]:
        """Of the shards that are here."""
        return {number: shard.copy.version for number, shard in self._shards.items()}

    def survives(self, versions: dict[int, int]) -> bool:
        """Whether others have these versions, too: of shards that are here, and no others' yet."""
        if len(self._fabric.members().addresses()) == 1:
            return True
        return all(
            self._given.get(number, -1) >= version
            for number, version in versions.items()
            if number in self._shards
        )

    def back_up(self, versions: dict[int, int]) -> None:
        """Sends the next member what would be lost with this one."""
        members = self._fabric.members().addresses()
        following = members[(members.index(self._fabric.address) + 1) % len(members)]
        lost = {s for s in versions if s in self._shards and self._given.get(s, -1) < versions[s]}
        for run in runs(lost, self._count, members):
            copies = tuple(self._shards[s].copy.twin() for s in range(*run))
            if self._send(following, PORT, Backup(run, copies), self._part(self._values, run)):
                self._note_given(run)

    def take_backup(self, message: Message[Backup]) -> None:
        """Keeps what another would lose."""
        backup = message.body
        first = backup.run[0]
        for shard, copy in zip(range(*backup.run), backup.copies, strict=True):
            mine = shard in self._shards or not self._begun
            if not mine and copy.newer_than(self._known[shard]):
                self._known[shard] = copy
                self._assign(shard, first, message.vector)
        message.release()

    def _note_given(self, run: Run) -> None:
        for shard in range(*run):
            if shard in self._shards:
                self._given[shard] = self._shards[shard].copy.version

    def _assign(self, shard: int, first: int, vector: Vector | None) -> None:
        """Takes a shard's values out of the vector of a run that begins with ``first``."""
        assert vector is not None
        low, high = bounds((shard, shard + 1), self._count, len(self.model))
        start = bounds((first, first), self._count, len(self.model))[0]
        self._values.slice(low, high).assign(vector.slice(low - start, high - start))

    # Requests.

    def serve(self, message: Message[PushPiece]) -> None:
        """A push, or only a pull."""
        self._try(lambda: self._serve(message))

    def show(self, message: Message[Show]) -> None:
        """A wish to see the model."""
        self._try(lambda: self._show(message))

    def give_copies(self, message: Message[CopiesWanted]) -> None:
        """Somebody is to hold shards, and wants what there is of them."""
        self._try(lambda: self._give_copies(message))

    def take_copies(self, message: Message[Copies]) -> None:
        """What another has of shards that this member is to hold."""
        copies = message.body
        first = copies.run[0]
        for shard, copy in zip(range(*copies.run), copies.copies, strict=True):
            if shard not in self._asked:
                continue
            if copy.newer_than(self._known[shard]):
                self._known[shard] = copy
                self._assign(shard, first, message.vector)
            self._asked[shard].discard(message.sender)
        message.release()
        self._complete()

    def change_view(self) -> None:
        """The members have changed: gives shards up, and asks for others."""
        if not self._begun:
            return
        view = self._fabric.members()
        members, me = view.addresses(), self._fabric.address
        if me not in members:
            return  # This one has left.
        mine = {s for s in range(self._count) if holder(s, self._count, members) == me}
        for shard in set(self._shards) - mine:
            if set(members) - set(self._members):  # the run goes on, and uses it there
                self._tell_restored((shard, shard + 1))
            self._known[shard] = self._shards.pop(shard).copy
            self._given.pop(shard, None)
        self._asked = {s: asked & set(members) for s, asked in self._asked.items() if s in mine}
        new = mine - set(self._shards) - set(self._asked)
        others = [m for m in members if m != me]
        before, self._members = self._members, members
        self.pull_codec.forget()
        if before:
            self._orphans |= {s for s in new if holder(s, self._count, before) not in members}
        for shard in new:
            self._asked[shard] = set(others)
            if self.copies[shard].newer_than(self._known[shard]):
                self._known[shard] = self.copies[shard].twin()
                part = self._part(self.model, (shard, shard + 1))
                self._part(self._values, (shard, shard + 1)).assign(part)
        for run in runs(new, self._count, members):
            ages = tuple(self._known[shard].age for shard in range(*run))
            for member in others:
                if not self._send(member, PORT, CopiesWanted(run, view.version, ages)):
                    for shard in range(*run):
                        self._asked[shard].discard(member)
        self._complete()

    def retry(self) -> None:
        """Something has changed: looks at what waits again."""
        held, self._held = self._held, []
        for serve in held:
            self._try(serve)

    # A checkpoint.

    def export(self, rounds: int) -> StateBundle:
        """The shards that are held here, with what their optimizers remember."""
        for number in self._shards:
            self._tell_restored((number, number + 1))
        held = {
            number: ShardState(Copy(shard.copy.version), shard.averaged)
            for number, shard in self._shards.items()
        }
        bundle = StateBundle(to_plain(ServerState(held, rounds)))
        for number, shard in self._shards.items():
            bundle.vectors[f"{number}.values"] = shard.values.copy()
            for name, vector in shard.updater.state().vectors.items():
                bundle.vectors[f"{number}.updater.{name}"] = vector
            if shard.mean is not None:
                bundle.vectors[f"{number}.mean"] = shard.mean.copy()
        return bundle

    def load(self, part: StateBundle, model: Vector) -> ServerState:
        """The inverse of ``export``, of any member's part; before ``begin``, with this model.

        Learners, their pushes and views are those of another run: of a copy the version remains.
        """
        state = from_plain(ServerState, part.plain)
        self.began = False
        for number, shard in state.held.items():
            self.copies[number] = Copy(shard.copy.version)
            values = model.slice(*bounds((number, number + 1), self._count, len(model)))
            values.assign(part.vectors[f"{number}.values"])
            prefix = f"{number}.updater."
            kept = StateBundle({"averaged": shard.averaged})
            for key, vector in part.vectors.items():
                if key.startswith(prefix):
                    kept.vectors[key.removeprefix(prefix)] = vector
            if f"{number}.mean" in part.vectors:
                kept.vectors["mean"] = part.vectors[f"{number}.mean"]
            self._kept[number] = kept
        return state

    # Inside.

    def _try(self, serve: Callable[[], bool]) -> None:
        if not serve():
            self._held.append(serve)

    def _early(self, view: int) -> bool:
        return not self._begun or view > self._fabric.members().version

    def _give_copies(self, message: Message[CopiesWanted]) -> bool:
        wanted = message.body
        if self._early(wanted.view):
            return False
        first, last = wanted.run
        copies = tuple(self._newest(shard) for shard in range(first, last))
        vector = None
        if any(copy.age > age for copy, age in zip(copies, wanted.ages, strict=True)):
            low, _ = bounds((first, last), self._count, len(self.model))
            vector = self._part(self.model, (first, last)).copy()
            for copy, shard in zip(copies, range(first, last), strict=True):
                if copy is not self.copies[shard]:
                    start, stop = bounds((shard, shard + 1), self._count, len(self.model))
                    vector.slice(start - low, stop - low).assign(self._values.slice(start, stop))
        twins = tuple(copy.twin() for copy in copies)
        self._send(message.sender, PORT, Copies(wanted.run, twins), vector)
        self._note_given(wanted.run)
        return True

    def _serve(self, message: Message[PushPiece]) -> bool:
        """Whether the request is answered."""
        push, sender = message.body, message.sender
        run = push.run
        if self._early(push.view) or self.holds_back(push):
            return False
        if sender not in self._fabric.members().addresses():
            message.release()  # It waited here, and what it wants applied is given out again.
            return True
        if not self._is_mine(run):
            message.release()
            self._send(sender, PORT, Moved(run, push.number))
            return True
        if not all(shard in self._shards for shard in range(*run)):
            return False
        self._tell_restored(run)
        first = self._shards[run[0]].copy
        stale, fresh = first.version - push.version, first.applied.get(sender, 0) < push.number
        if push.bound and fresh and stale > push.bound:
            message.release()
            self._send(sender, PORT, Dropped(run, push.number, stale))
            return True
        here = sender == self._fabric.address
        values = self._part(self._values, run)
        if message.vector is not None:
            update = message.vector
            if not here and self._precision is not Precision.FLOAT32:
                update = values.like()
                update.assign(message.vector.decoded(self._precision, values))
            self._apply(push, sender, update)
        message.release()
        copies = tuple(self._shards[s].copy.twin() for s in range(*run))
        same = push.initial and all(copy.version == 0 for copy in copies)
        answer, difference, vector = 0, False, None if same else values
        if not here and same:
            answer = self.pull_codec.agree(sender, run, values)
        elif not here:
            answer, difference, vector = self.pull_codec.answer(sender, run, push.base, values)
        reply = Pulled(run, push.number, stale, copies, answer, difference)
        self._send(sender, PORT, reply, vector)
        if not here:
            self._note_given(run)
        return True

    def _is_mine(self, run: Run) -> bool:
        members, me = self._fabric.members().addresses(), self._fabric.address
        return all(holder(shard, self._count, members) == me for shard in range(*run))

    def _show(self, message: Message[Show]) -> bool:
        """Whether the request is answered."""
        run, sender = message.body.run, message.sender
        if self._early(message.body.view):
            return False
        if sender not in self._fabric.members().addresses():
            return True
        if not self._is_mine(run):
            self._send(sender, SHOWN, Shown())
            return True
        if not all(shard in self._shards for shard in range(*run)):
            return False
        self._tell_restored(run)
        vector = self._part(self._values, run)
        if any(self._shards[s].mean is not None for s in range(*run)):
            vector = vector.copy()
            low = bounds(run, self._count, len(self.model))[0]
            for s in range(*run):
                start, stop = bounds((s, s + 1), self._count, len(self.model))
                vector.slice(start - low, stop - low).assign(self._shards[s].shown)
        self._send(sender, SHOWN, Shown(), vector)
        return True

    def _apply(self, push: PushPiece, pusher: Address, update: Vector) -> None:
        low = bounds(push.run, self._count, len(self.model))[0]
        averages = self._averages_from is not None and push.progress > self._averages_from
        for number in range(*push.run):
            start, stop = bounds((number, number + 1), self._count, len(self.model))
            part, shard = update.slice(start - low, stop - low), self._shards[number]
            shard.apply(pusher, push.number, part, push.rates, averages=averages)
            shard.copy.notes[pusher] = push.note

    def _complete(self) -> None:
        """Begins to hold the shards of which everybody has told what there is."""
        for shard in [s for s, asked in self._asked.items() if not asked]:
            del self._asked[shard]
            part = self._part(self._values, (shard, shard + 1))
            start = bounds((shard, shard + 1), self._count, len(self.model))[0]
            updater = self._make_updater(part, start)
            kept = self._kept.pop(shard, None)
            is_of_checkpoint = self._known[shard].generation == 0
            self._known[shard].generation = self._fabric.members().version
            self._shards[shard] = Shard(part, updater, self._known[shard])
            self._count_lost(shard)
            if kept is not None and is_of_checkpoint:
                self._shards[shard].mean = kept.vectors.pop("mean", None)
                self._shards[shard].averaged = kept.plain["averaged"]
                if kept.vectors:
                    updater.load_state(kept)
        self.retry()

    def _count_lost(self, shard: int) -> None:
        """Counts the updates that went with a holder: those that other shards have more."""
        if shard in self._orphans:
            self._orphans.discard(shard)
            version = self._known[shard].version
            lost = max(self._newest(other).version for other in range(self._count)) - version
            if lost:
                self._rolled_back[shard] = lost

    def _tell_restored(self, run: Run) -> None:
        """These shards go on from an older version: somebody uses them."""
        for shard in range(*run):
            lost = self._rolled_back.pop(shard, 0)
            if lost:
                version = self._shards[shard].copy.version
                self._replica.event("restored", shard=shard, version=version, rolled_back=lost)

    def _part(self, vector: Vector, run: Run) -> Vector:
        return vector.slice(*bounds(run, self._count, len(self.model)))

    def _send(self, to: Address, port: TypedPort[B], body: B, vector: Vector | None = None) -> bool:
        try:
            self._fabric.send(to, port, body, vector)
        except Gone:
            return False
        return True
