"""What every part of the coordinator's state works on: members, pool, rounds, and messages."""

from __future__ import annotations

from collections.abc import Collection

from unisono.coordinator.checkpoints import Checkpoints
from unisono.coordinator.delivery import Delivery
from unisono.coordinator.directives import Directive, Failure
from unisono.coordinator.job import Job, Sharding
from unisono.coordinator.messages import Body, Complete
from unisono.coordinator.output import STRATEGY, Output
from unisono.coordinator.pace import LEAST_ROUNDS, LEAST_SHARE, Pace
from unisono.coordinator.sync_rounds import SyncRounds
from unisono.fabric.address import Address, Addresses
from unisono.fabric.api import View
from unisono.pool.pool import Pool


class RunState:
    """The facts of one run, which static and dynamic sharding read and change."""

    def __init__(self, expected: int) -> None:
        self.expected = expected
        self._view = View()
        self.members = self._view.addresses()
        """The living learners and servers, in the members' order."""
        self.job: Job | None = None
        self.pool = Pool(0)
        self.pace = Pace(((0, LEAST_SHARE),))
        self.sync_rounds = SyncRounds()
        self.checkpoints = Checkpoints()
        self.delivery = Delivery()
        self.lost: list[Address] = []
        self.joined = 0
        self.endpoints: dict[Address, str] = {}
        """The endpoints of all who have ever joined."""
        self.metrics = ""
        """The file that the first learner named for the run's events."""
        self.diverged: set[Address] = set()
        self.failure: Failure | None = None
        self.started = False
        self.first_round = 0
        self.restored: set[Address] = set()
        """Learners that came with the state of the checkpoint that the run was resumed from."""
        self.opened: dict[Address, str] = {}
        """Learners that have sent their job, with the digest of the state that they came with."""
        self.trained_before: set[Address] = set()
        """Learners that trained something in an earlier incarnation, with incarnation 0."""
        self.leader: Address | None = None
        self.requests = 0
        """How many requests of people were handled."""
        self.removed: set[int] = set()
        """Numbers of learners that are to leave, or have left, before the end."""
        self.unasked = False
        """Whether some of them have still to be asked to leave."""
        self.stopping = False
        """Whether nothing more is to be handed out after the next checkpoint."""

    @property
    def view(self) -> View:
        return self._view

    @view.setter
    def view(self, view: View) -> None:
        self._view, self.members = view, view.addresses()

    @property
    def learners(self) -> Addresses:
        """The members that train."""
        return self.members.learners

    @property
    def is_dynamic(self) -> bool:
        """Whether sharding is dynamic; until the job is known it is not."""
        return self.job is not None and self.job.sharding is Sharding.DYNAMIC

    @property
    def commits_by_word(self) -> bool:
        """Dynamic sharding without sync rounds: others may have the work of the dead."""
        return self.is_dynamic and self.job is not None and not self.job.commits_by_round

    def is_fresh(self, who: Address) -> bool:
        """Whether nothing that a learner trained in an earlier incarnation was returned."""
        return who._replace(incarnation=0) not in self.trained_before

    def first_donor(self, candidates: Collection[Address]) -> Address | None:
        """Who may begin with its own parameters when no living learner has the run's.

        Only before anything is committed, or committed work would be lost silently. And only a
        learner that has not trained in an earlier incarnation: what it trained then was returned,
        and would count twice.
        """
        if self.pool.counts.committed:
            return None
        first = min(filter(self.is_fresh, self.members), default=None)
        return first if first in candidates else None

    def begins_like(self, who: Address, other: Address) -> bool:
        """Whether two learners came with the same state."""
        digest = self.opened.get(who, "")
        return bool(digest) and digest == self.opened.get(other)

    def share(self, round_: int) -> int:
        """Minibatches per learner and round, from a round on."""
        assert self.job is not None
        self.pace.most = max(1, self.job.total // (len(self.learners) * LEAST_ROUNDS))
        return self.pace.at(round_, self.learners)

    def complete(self, holders: Collection[Address]) -> Complete:
        """Everything is committed: names the leader, the first learner that has the model."""
        if self.leader is None:
            if self.pool.counts.leased == 0:
                # All was committed before the run was resumed: every checkpoint holds the model.
                holders = self.members
            able = [a for a in self.learners if a in holders]
            staying = [a for a in able if a.number not in self.removed]
            self.leader = next(iter(staying or able), None)
        return Complete(self.leader, self.pool.stopped)

    def tell(self, to: Address, port: str, body: Body) -> None:
        self.delivery.send(Output(to, port, body))

    def direct(self, to: Address, directive: Directive) -> None:
        """Sends a directive to a learner's strategy."""
        self.tell(to, STRATEGY, directive)
