"""One learner's part in a parameter server: it pushes what it learnt, and pulls the model."""

from __future__ import annotations

from collections.abc import Sequence

from unisono.errors import UserError
from unisono.fabric import Address, TimedOut, Vector, from_plain
from unisono.pool.pool import Assignment
from unisono.strategies.base import Participant, Replica, StateBundle, TrainedWork
from unisono.strategies.engines.accumulators import Accumulator
from unisono.strategies.engines.joining import join_dynamic
from unisono.strategies.engines.model_view import ModelView
from unisono.strategies.engines.pushes import Push, ServerSettings
from unisono.strategies.engines.server_agent import UNSENT, ServerAgent
from unisono.strategies.engines.server_messages import (
    ENDED,
    FINAL,
    PORT,
    PULLED,
    SHOWN,
    Drain,
    End,
    HasEntered,
    NewcomerState,
    PushReady,
)
from unisono.strategies.engines.shard_store import ShardStore
from unisono.strategies.engines.state_transfer import receive_state


class ServerParticipant(Participant):
    """Updates out, parameters in.

    What ``push_every`` minibatches come to (``accumulators``) goes out as one push, cut into runs
    of shards. Each holder applies its run as it comes, and answers with what it has then. A change
    of the parameters is added; with gradients the shard takes a step, with the learner's own
    optimizer rebuilt on it and the learning rates that the push carries.

    Nobody waits for another learner; what is pulled may mix versions of different shards. The
    *staleness* of a push is the number of pushes applied to shard 0 between the pull that its
    first minibatch was computed at and its own application: W - 1 for W equal learners that wait
    for the reply, 2 W - 1 with overlap.

    With a ``bound`` the run of shard 0 goes first: its holder applies it or drops the whole push,
    before any other piece is on its way. The work of a dropped push goes back to the pool, and the
    learner pulls the newest model.

    A push is committed when all its pieces are applied and those in shards that its own learner
    holds have gone to another one. If the learner dies before, whoever has a piece of the push
    reports it: a minibatch that is in the model is never trained again, and a death between two
    pieces loses a part of one push.
    """

    def __init__(
        self,
        replica: Replica,
        settings: ServerSettings,
        accumulator: Accumulator,
        *,
        averages_from: float | None = None,
    ) -> None:
        super().__init__(replica)
        self._settings = settings
        self._accumulator = accumulator
        self.shares_gradients = not accumulator.steps_locally
        self._shard_store = ShardStore(replica, settings, accumulator.updater, averages_from)
        self._agent = ServerAgent(replica, settings, self._shard_store)
        self._model_view = ModelView(self.fabric, self._shard_store, settings.shards)
        self._entered = False
        self._examples = 0
        self._minibatches = 0
        """Stepped on since the last push."""
        self._under_way = False
        self._idle = True
        """Whether others may have trained on since this learner pulled."""
        self._pulled_at = self._computed_at = 0
        """Versions of shard 0: in the model, and of the first minibatch that is not pushed."""
        self._final: Vector | None = None

    def start(self) -> None:
        """Spawns the agent."""
        self.fabric.port(PORT, members=True)
        for port in (PULLED, SHOWN, FINAL, ENDED):
            self.fabric.port(port)
        self.fabric.spawn("agent", self._agent.run)

    def enter(self, assignment: Assignment | None) -> bool:
        """Begins with the model of one that is in already."""
        self._entered = join_dynamic(self.client, self._receive_state, lambda: 0)
        if self._entered:
            self._agent.model = self.replica.parameters()
            self._pulled_at = self._shard_store.copies[0].version
            self.fabric.post(PORT, HasEntered())
        return self._entered

    def _check_bound(self) -> None:
        learners = len(self.fabric.members().addresses().learners)
        least = self._settings.staleness(learners)
        if 0 < self._settings.bound < least:
            raise UserError(
                f"a staleness bound of {self._settings.bound} would drop every push: with "
                f"{learners} learners it is about {least}; give at least that, or 0 for none"
            )

    def before_minibatch(self) -> None:
        """Pulls first, if others have trained meanwhile: at the start, and after a pause."""
        if self._idle:
            self._idle = False
            self._begin(None, (), TrainedWork())
            self._pull(wait=True)

    def after_backward(self, sync_round: int, work: TrainedWork, *, accumulate: bool) -> None:
        """Counts the examples of the gradients."""
        self._examples += work.examples

    def before_update(self) -> bool:
        """Takes the minibatch in; with gradients the step is that of the shards."""
        if self._minibatches == 0:
            self._computed_at = self._pulled_at
        self._accumulator.add(self._examples)
        self._examples = 0
        self._minibatches += 1
        return self._accumulator.steps_locally

    def after_update(self) -> None:
        """Takes over what was pulled, and pushes when it is time.

        A learner that trains alone takes plain steps: shards make them one by one, without delay.
        """
        if self._under_way:
            self._pull(wait=False)
        plain = self._alone and not self._accumulator.steps_locally
        enough = 1 if plain else self._settings.push_every
        if self._minibatches >= enough and not self._under_way:
            self._begin_push()
            if plain or not self._settings.overlap:
                self._pull(wait=True)

    def flush(self) -> None:
        """Pushes what there is, and waits until it is applied."""
        if self._under_way:
            self._pull(wait=True)
        if self._minibatches:
            self._begin_push()
            self._pull(wait=True)
        self._idle = True
        self.fabric.post(PORT, Drain())

    def _begin_push(self) -> None:
        if self.rounds == 0:
            self._check_bound()  # All who are expected are here: work is given out after that.
        share = self._share()
        update = self._accumulator.take(self._shard_store.model, share, self.rounds)
        self._minibatches = 0
        self._begin(update, self._accumulator.rates(share), self.replica.take_work())

    def _begin(self, update: Vector | None, rates: Sequence[float], work: TrainedWork) -> None:
        push = Push(
            number=0,
            update=update,
            work=work,
            rates=rates,
            progress=self.replica.progress(),
            version=self._computed_at,
            missing=set(range(self._settings.shards)),
            decided=update is None or not self._settings.bound,
        )
        self._under_way = True
        self._agent.ready = push
        self.fabric.post(PORT, PushReady())

    @property
    def _alone(self) -> bool:
        """Whether the current minibatch belongs to the warm start."""
        return self.replica.progress() <= self._settings.warm_start

    def _share(self) -> float:
        """Of this learner in the model: all of it while it trains alone."""
        return 1.0 if self._alone else 1 / len(self.fabric.members().addresses().learners)

    def _pull(self, *, wait: bool) -> None:
        if wait:
            with self.waiting():
                self.fabric.receive(PULLED)
        else:
            try:
                self.fabric.receive(PULLED, timeout=0.0)
            except TimedOut:
                return
        self._under_way = False
        self.rounds = self._agent.applied
        self._pulled_at = self._shard_store.copies[0].version
        self._accumulator.pull(self._shard_store.model)

    def finish(self, leader: Address | None) -> None:
        """The leader collects the shards' model when all are done; they stay until it has."""
        if not self._entered:
            return
        if self._final is None:
            self._final = self._model_view.agree(leader)
        self.replica.replace(self._final)
        # Who leaves tells the coordinator nothing any more: there may soon be none.
        self.fabric.post(PORT, End())
        self.fabric.receive(ENDED)

    def consensus(self) -> Vector | None:
        """What the shards hand out: their parameters, or the running mean of them."""
        if not self._entered:
            return None
        whole = self.replica.export(optimizer=False).vectors["parameters"]
        shown = self._model_view.collect() if self._final is None else self._final
        whole.slice(0, len(shown)).assign(shown)
        return whole

    def restore_parts(self, parts: Sequence[StateBundle]) -> None:
        """All shards: other members may hold other ones than when the checkpoint was made."""
        model = self.replica.parameters()
        own, *_ = [self._shard_store.load(part, model) for part in parts]
        self.replica.replace(model)
        self.rounds = self._agent.applied = own.rounds
        self._agent.push_codec.unsent = parts[0].vectors.get(UNSENT)

    def take_checkpoint(self) -> tuple[int, StateBundle] | None:
        """What the coordinator asked to keep."""
        kept, self._agent.kept = self._agent.kept, None
        return kept

    def _receive_state(self, donor: Address) -> None:
        learner, own = receive_state(self.fabric, donor, 2)
        self.replica.take_over(learner)
        state = from_plain(NewcomerState, own.plain)
        self._shard_store.copies = list(state.copies)
        self._shard_store.began = state.initial
        self._agent.witness.gone.update(state.gone)
