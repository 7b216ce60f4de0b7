"""What one member has of a server's model: the shards that it holds, and a copy of all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from unisono.fabric import Address, Gone, Message, Vector
from unisono.strategies.base import Replica, StateBundle
from unisono.strategies.engines.shards import Copy, Run, Shard, bounds, holder, runs


class ShardStore:
    """Shards that are moved by a change of the members, and those who want something of them.

    Who holds a shard is a function of the members (``shards.holder``). Whoever comes to hold one
    asks all others what they have of it: the one who held it, if it lives, has the newest; else
    the newest is what a living learner pulled last, and that contains every push which a living
    learner knows to be applied. A push whose reply was lost with the holder is sent again, and is
    told from one that is in it by its number. What optimizers remember (momentum) and the running
    mean begin anew in a shard that moves.

    A request that comes too early (from a member that has seen a newer view, or for a shard that
    is not complete yet) waits here; one that comes too late is answered with ``moved``.
    """

    def __init__(self, replica: Replica, port: str, shards: int, averages_from: float | None):
        self._replica = replica
        self._fabric = replica.fabric
        self._port = port
        self._count = shards
        self._averages_from = averages_from
        self._shards: dict[int, Shard] = {}
        self._asked: dict[int, set[Address]] = {}
        self._kept: dict[int, StateBundle] = {}
        self._kept_values: dict[int, Vector] = {}
        self._held: list[tuple[Message, Callable[[Message], bool]]] = []
        self._begun = False
        self.copies = [Copy() for _ in range(shards)]
        """What ``model`` is a copy of."""
        self._known = [Copy(generation=-1) for _ in range(shards)]
        self.holds_back: Callable[[Message], bool] = lambda message: False
        """Whether a push must wait, whatever shard it is for."""
        self._given: dict[int, int] = {}
        """The newest version of each shard here that another member was sent."""
        self._members: list[Address] = []
        self._orphans: set[int] = set()
        """Shards that come here because their holder is gone."""

    # The model.

    def begin(self, model: Vector) -> None:
        """This learner has a model: that with which it begins, or a donor's copy."""
        self.model = model
        self._values = model.copy()
        self._begun = True
        for shard, vector in self._kept_values.items():
            self._part(self._values, (shard, shard + 1)).assign(vector)
        self.change_view()

    def take(self, message: Message) -> Run:
        """Takes newer values of a run over into ``model``."""
        first, last = message.body["run"]
        self._part(self.model, (first, last)).assign(message.vector)
        for shard, copy in zip(range(first, last), message.body["copies"], strict=True):
            self.copies[shard] = Copy(*copy)
        return first, last

    # What survives this member.

    @property
    def complete(self) -> bool:
        """Whether all shards that are to be here are."""
        return not self._asked

    def work_of(self, gone: str) -> list[list[int]]:
        """The last work of one who is gone that is in the model as it is known here."""
        found: list[list[int]] = []
        for number in range(self._count):
            found += [n for n in self._newest(number).notes.get(gone, []) if n not in found]
        return found

    def forget(self, gone: str, note: list[list[int]]) -> None:
        """The coordinator knows this work of one who is gone."""
        for number in range(self._count):
            notes = self._newest(number).notes
            left = [n for n in notes.pop(gone, []) if n not in note]
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
            copies = [self._shards[s].copy.to_body() for s in range(*run)]
            body = {"kind": "backup", "run": list(run), "copies": copies}
            if self._send(following, self._port, body, self._part(self._values, run)):
                self._note_given(run)

    def take_backup(self, message: Message) -> None:
        """Keeps what another would lose."""
        first, last = message.body["run"]
        for place, shard in enumerate(range(first, last)):
            copy = Copy(*message.body["copies"][place])
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

    def serve(self, message: Message) -> None:
        """A push, a pull, or a wish to see the model."""
        self._try(message, self._serve)

    def give_copies(self, message: Message) -> None:
        """Somebody is to hold shards, and wants what there is of them."""
        self._try(message, self._give_copies)

    def take_copies(self, message: Message) -> None:
        """What another has of shards that this member is to hold."""
        first, last = message.body["run"]
        for place, shard in enumerate(range(first, last)):
            copy = Copy(*message.body["copies"][place])
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
            self._known[shard] = self._shards.pop(shard).copy
            self._given.pop(shard, None)
        self._asked = {s: asked & set(members) for s, asked in self._asked.items() if s in mine}
        new = mine - set(self._shards) - set(self._asked)
        others = [m for m in members if m != me]
        before, self._members = self._members, members
        if before:
            self._orphans |= {s for s in new if holder(s, self._count, before) not in members}
        for shard in new:
            self._asked[shard] = set(others)
            if self.copies[shard].newer_than(self._known[shard]):
                self._known[shard] = self.copies[shard].twin()
                part = self._part(self.model, (shard, shard + 1))
                self._part(self._values, (shard, shard + 1)).assign(part)
        for run in runs(new, self._count, members):
            body = {"kind": "copies wanted", "run": list(run), "view": view.version}
            for member in others:
                if not self._send(member, self._port, body):
                    for shard in range(*run):
                        self._asked[shard].discard(member)
        self._complete()

    def retry(self) -> None:
        """Something has changed: looks at what waits again."""
        held, self._held = self._held, []
        for message, serve in held:
            self._try(message, serve)

    # A checkpoint.

    def export(self) -> StateBundle:
        """The shards that are held here, with what their optimizers remember."""
        held = {str(s): shard.copy.to_body() for s, shard in self._shards.items()}
        copies = [copy.to_body() for copy in self.copies]
        bundle = StateBundle({"held": held, "copies": copies})
        for number, shard in self._shards.items():
            bundle.vectors[f"{number}.values"] = shard.values.copy()
            for name, vector in shard.updater.state().vectors.items():
                bundle.vectors[f"{number}.updater.{name}"] = vector
            if shard.mean is not None:
                bundle.vectors[f"{number}.mean"] = shard.mean.copy()
                bundle.plain[f"{number}.averaged"] = shard.averaged
        return bundle

    def load(self, bundle: StateBundle) -> None:
        """The inverse of ``export``; before ``begin``."""
        self.copies = [Copy(*copy) for copy in bundle.plain["copies"]]
        for name, copy in bundle.plain["held"].items():
            self._known[int(name)] = Copy(*copy)
            self._kept_values[int(name)] = bundle.vectors[f"{name}.values"]
            prefix = f"{name}.updater."
            kept = StateBundle({"averaged": bundle.plain.get(f"{name}.averaged", 0)})
            for key, vector in bundle.vectors.items():
                if key.startswith(prefix):
                    kept.vectors[key.removeprefix(prefix)] = vector
            if f"{name}.mean" in bundle.vectors:
                kept.vectors["mean"] = bundle.vectors[f"{name}.mean"]
            self._kept[int(name)] = kept

    # Inside.

    def _try(self, message: Message, serve: Callable[[Message], bool]) -> None:
        if not serve(message):
            self._held.append((message, serve))

    def _early(self, message: Message) -> bool:
        return not self._begun or message.body["view"] > self._fabric.members().version

    def _give_copies(self, message: Message) -> bool:
        if self._early(message):
            return False
        first, last = message.body["run"]
        low, _ = bounds((first, last), self._count, len(self.model))
        vector = self._part(self.model, (first, last)).copy()
        copies = self.copies[first:last]
        for place, shard in enumerate(range(first, last)):
            newest = self._newest(shard)
            if newest is not copies[place]:
                copies[place] = newest
                start, stop = bounds((shard, shard + 1), self._count, len(self.model))
                vector.slice(start - low, stop - low).assign(self._values.slice(start, stop))
        body = {"kind": "copies", "run": [first, last], "copies": [c.to_body() for c in copies]}
        self._send(message.sender, self._port, body, vector)
        self._note_given((first, last))
        return True

    def _serve(self, message: Message) -> bool:
        """Whether the request is answered."""
        body, sender = message.body, message.sender
        run: Run = (body["run"][0], body["run"][1])
        if self._early(message) or self.holds_back(message):
            return False
        members = self._fabric.members().addresses()
        if sender not in members:
            message.release()  # It waited here, and what it wants applied is given out again.
            return True
        shards = range(*run)
        if any(holder(s, self._count, members) != self._fabric.address for s in shards):
            message.release()
            reply = {"kind": "moved", "run": list(run), "number": body["number"]}
            self._send(sender, body["reply"], reply)
            return True
        if not all(shard in self._shards for shard in shards):
            return False
        stale = self._shards[run[0]].copy.version - body["version"]
        answer: dict[str, Any] = {"run": list(run), "number": body["number"], "stale": stale}
        fresh = self._shards[run[0]].copy.applied.get(str(sender), 0) < body["number"]
        if body["bound"] and fresh and stale > body["bound"]:
            message.release()
            self._send(sender, body["reply"], {**answer, "kind": "dropped"})
            return True
        if message.vector is not None:
            self._apply(run, message)
        message.release()
        answer["copies"] = [self._shards[s].copy.to_body() for s in shards]
        vector = self._part(self._values, run)
        if body["kind"] == "show" and any(self._shards[s].mean is not None for s in shards):
            vector = vector.copy()
            low = bounds(run, self._count, len(self.model))[0]
            for s in shards:
                start, stop = bounds((s, s + 1), self._count, len(self.model))
                vector.slice(start - low, stop - low).assign(self._shards[s].shown)
        self._send(sender, body["reply"], {**answer, "kind": "pulled"}, vector)
        if sender != self._fabric.address and body["kind"] == "piece":
            self._note_given(run)
        return True

    def _apply(self, run: Run, message: Message) -> None:
        body, gradient = message.body, message.vector
        assert gradient is not None
        low = bounds(run, self._count, len(self.model))[0]
        averages = self._averages_from is not None and body["progress"] > self._averages_from
        pusher = str(message.sender)
        for shard in range(*run):
            start, stop = bounds((shard, shard + 1), self._count, len(self.model))
            part = gradient.slice(start - low, stop - low)
            self._shards[shard].apply(
                pusher, body["number"], part, body["rates"], averages=averages
            )
            self._shards[shard].copy.notes[pusher] = body["note"]

    def _complete(self) -> None:
        """Begins to hold the shards of which everybody has told what there is."""
        for shard in [s for s, asked in self._asked.items() if not asked]:
            del self._asked[shard]
            part = self._part(self._values, (shard, shard + 1))
            start = bounds((shard, shard + 1), self._count, len(self.model))[0]
            updater = self._replica.updater(part, start)
            self._known[shard].generation = self._fabric.members().version
            self._shards[shard] = Shard(part, updater, self._known[shard])
            self._tell_restored(shard)
            kept = self._kept.pop(shard, None)
            if kept is not None:
                self._shards[shard].mean = kept.vectors.pop("mean", None)
                self._shards[shard].averaged = kept.plain["averaged"]
                if kept.vectors:
                    updater.load_state(kept)
        self.retry()

    def _tell_restored(self, shard: int) -> None:
        """Counts the updates that went with a holder: those that other shards have more."""
        if shard in self._orphans:
            self._orphans.discard(shard)
            version = self._known[shard].version
            lost = max(self._newest(other).version for other in range(self._count)) - version
            if lost:
                self._replica.event("restored", shard=shard, version=version, rolled_back=lost)

    def _part(self, vector: Vector, run: Run) -> Vector:
        return vector.slice(*bounds(run, self._count, len(self.model)))

    def _send(
        self, to: Address, port: str, body: dict[str, Any], vector: Vector | None = None
    ) -> bool:
        try:
            self._fabric.send(to, port, body, vector)
        except Gone:
            return False
        return True
