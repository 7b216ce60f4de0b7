"""What a learner of ``unisono train`` does round by round; with Kaldi's rules where asked for."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from torch import Tensor, nn
from torch.optim import Optimizer

from unisono.config import Config, ObjectiveChoice
from unisono.errors import UserError
from unisono.learner.learner import Learner
from unisono.optim import NaturalGradientSGD, Schedule
from unisono.strategies import Averaging, Candidate, KeepGood, Sharding
from unisono.strategies.base import Strategy
from unisono.strategies.registry import make
from unisono.training.kaldi.combination import copy_state
from unisono.training.kaldi.kaldi_schedule import (
    DropoutSchedule,
    combined_rounds,
    learners_in,
    progress_in,
    round_count,
)


def check_recipe(config: Config) -> None:
    """Refuses what the recipe is not for.

    Raises:
        UserError: another strategy or objective, or a schedule that cannot be read.
    """
    if not config.recipe.enabled:
        return
    if config.objective is not ObjectiveChoice.STATES:
        raise UserError(
            "recipe.enabled: Kaldi's rules are for aligned frames, not for --objective "
            f"{config.objective.value}"
        )
    strategy = make(config.strategy_name, config.strategy_options)
    if not isinstance(strategy, Averaging) or strategy.sharding is not Sharding.STATIC:
        raise UserError(
            "recipe.enabled: Kaldi's rules are for rounds of averaging with static sharding; use "
            "--strategy averaging, and not strategy.sharding=dynamic"
        )
    first, learners = config.recipe.first_learners, config.learner_range[1]
    if first > learners:
        raise UserError(
            f"recipe.first_learners is {first}, and the run has {learners} learners: "
            "begin with fewer"
        )
    if first and config.cluster:
        raise UserError(
            "recipe.first_learners is for one machine: on a cluster use --learners MIN:MAX"
        )
    dropout_of(config)


def check_rounds(config: Config, frames: int) -> None:
    """Refuses a run by the recipe that is over with its first round, in which nothing is averaged.

    Raises:
        UserError: there is too little data for the pace.
    """
    strategy = make(config.strategy_name, config.strategy_options)
    if not config.recipe.enabled or not isinstance(strategy, Averaging):
        return
    total, learners = frames * config.epochs, config.first_learners
    minibatches = math.ceil(frames / config.minibatch) * config.epochs
    share = strategy.round_plan(config.minibatch).share
    if round_count(minibatches, share, learners, learners) < 2:
        pace = max(config.minibatch, total // (20 * learners))
        raise UserError(
            f"recipe.enabled: {total} frames are one round of {learners} learners with "
            f"strategy.every={strategy.every}, and nothing is averaged; set it to {pace}, say"
        )


def dropout_of(config: Config) -> DropoutSchedule | None:
    """The schedule of dropout, if the recipe has one."""
    text = config.recipe.dropout if config.recipe.enabled else ""
    return DropoutSchedule.parse(text) if text else None


def decay_of(config: Config) -> float:
    """Weight decay of one learner.

    A step of one of J learners counts for 1/J in the mean, and the learning rate is J times as
    large to make up for it; decay, which all of them do alike, would then be J times too strong.
    """
    decay = config.rate.weight_decay
    if config.recipe.enabled and config.recipe.divide_decay:
        return decay / config.first_learners
    return decay


class MeanObjective:
    """The log-prob a frame of what this learner trained; sums stay on the device."""

    def __init__(self) -> None:
        self._total: Tensor | None = None
        self._frames = 0

    def add(self, loss: Tensor, frames: int) -> None:
        """A mean loss over so many frames."""
        total = loss.detach() * frames
        self._total = total if self._total is None else self._total + total
        self._frames += frames

    def take(self) -> float | None:
        """The mean since the last time; None if there was nothing."""
        total, frames = self._total, self._frames
        self._total, self._frames = None, 0
        return None if total is None else -float(total) / frames


@dataclass(frozen=True, kw_only=True)
class CountedKeepGood(KeepGood):
    """The rule, which also says how many learners took part in each sync round."""

    count: Callable[[int], None] = field(repr=False)

    def weights(self, candidates: Sequence[Candidate], sync_round: int) -> list[float]:
        """As ``KeepGood``."""
        self.count(len(candidates))
        return super().weights(candidates, sync_round)


class KaldiRecipe:
    """Rates, dropout, bounds and minibatches of each round, and the models that rounds end with.

    Without the recipe the learning rate follows its schedule from minibatch to minibatch, for as
    many learners as are in the run, and that is all.
    """

    def __init__(
        self,
        config: Config,
        model: nn.Module,
        optimizer: Optimizer,
        schedule: Callable[[int], Schedule],
        examples: int,
        minibatch: int,
        ask: Callable[[int], None] = lambda learners: None,
    ) -> None:
        """Nothing is trained yet.

        Args:
            config: Of the run.
            model: What is trained.
            optimizer: By what.
            schedule: Of the learning rate, for so many learners.
            examples: Of one epoch.
            minibatch: Examples of a minibatch.
            ask: Asks for so many learners, where they ramp up.
        """
        self._config, self._recipe = config, config.recipe
        self._model, self._optimizer, self._schedule = model, optimizer, schedule
        self._objective = MeanObjective()
        self._dropout = dropout_of(config)
        self._first, self._most = config.first_learners, config.learner_range[1]
        self._ramps = config.recipe.enabled and config.recipe.first_learners > 0
        self._members = 0
        self._decay = decay_of(config)
        self._minibatch, self._ask = minibatch, ask
        self._per_epoch = math.ceil(examples / minibatch)
        self._total = self._per_epoch * config.epochs
        self._round, self._seen = -1, 0.0
        self._bound = 0.0
        if isinstance(optimizer, NaturalGradientSGD):
            self._bound = optimizer.max_change_total
        self._rounds, self._share = 1, 1
        self.states: list[dict[str, Tensor]] = []
        """The models of the rounds that are to be combined, as far as they have come."""

    def strategy(self, strategy: Strategy) -> Strategy:
        """The strategy, with the recipe's choice of models; its pace is known from here on."""
        if not self._recipe.enabled:
            return strategy
        assert isinstance(strategy, Averaging)
        self._share = strategy.round_plan(self._minibatch).share
        last = self._most if self._ramps else self._first
        self._rounds = round_count(self._total, self._share, self._first, last)
        rule = CountedKeepGood(
            tell=self._objective.take,
            gap=self._recipe.gap,
            best_first=self._recipe.best_first,
            count=self._count,
        )
        return replace(strategy, selection=rule)

    def begin(self, learner: Learner) -> None:
        """Before a minibatch is trained."""
        seen = learner.progress
        if self._recipe.enabled and learner.rounds != self._round:
            self._begin_round(learner)
        if self._recipe.enabled and self._recipe.rate_by_round:
            seen = progress_in(self._seen, self._share * self._members / self._total)
        members = self._members if self._recipe.enabled else learner.members
        rate = self._schedule(members).rate(seen)
        if self._gentle:  # Kaldi's loss is a sum, so half a minibatch steps half as far; a mean's
            rate /= 2  # gradient is as long for a half as for the whole
        for group in self._optimizer.param_groups:
            group["lr"] = rate

    def parts(self, x: Tensor, y: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """The minibatch, or its halves in the first round."""
        if self._gentle:
            yield from zip(x.chunk(2), y.chunk(2), strict=True)
        else:
            yield x, y

    def note(self, loss: Tensor, frames: int) -> None:
        """The loss of one step."""
        if self._recipe.enabled:
            self._objective.add(loss, frames)

    def end(self, learner: Learner) -> None:
        """After a minibatch was trained: a round may have ended with it."""
        if not self._recipe.enabled or learner.rounds == self._round:
            return
        self._seen = learner.progress
        if self._ramps:  # all ask for the same: each of them may leave before the end
            self._ask(self._planned(learner.rounds))
        if learner.rounds - 1 in self._combined(learner.rounds):
            with learner.consensus() as model:
                self.states.append(copy_state(model))
            del self.states[: -self._recipe.combine]

    @property
    def _gentle(self) -> bool:
        return self._recipe.enabled and self._recipe.gentle_first and self._round == 0

    def _planned(self, round_: int) -> int:
        if not self._ramps:
            return self._first
        return learners_in(min(round_, self._rounds), self._rounds, self._first, self._most)

    def _combined(self, done: int) -> list[int]:
        """The rounds whose models are to be combined, as it looks after ``done`` rounds.

        How many there will be changes as learners come and go. Once all is seen, the last round is
        among them whatever happened before.
        """
        left = round((1.0 - self._seen) * self._total)
        last = max(self._members, self._most) if self._ramps else self._members
        ahead = round_count(left, self._share, self._members, last) if left else 0
        half_epoch = self._per_epoch // (2 * self._share * last)
        return combined_rounds(done + ahead, half_epoch, self._recipe.combine)

    def _count(self, members: int) -> None:
        self._members = members

    def _begin_round(self, learner: Learner) -> None:
        self._members = self._members or self._planned(learner.rounds)
        if learner.rounds not in (0, self._round + 1):  # resumed, or a newcomer
            reached = round(learner.progress * self._total)  # with the first step of each learner
            self._seen = max(reached - self._members, 0) / self._total
        self._round = learner.rounds
        if self._recipe.divide_decay:
            for group in self._optimizer.param_groups:
                group["weight_decay"] = self._decay * self._first / self._members
        if isinstance(self._optimizer, NaturalGradientSGD):
            shorter = math.sqrt(2.0) if self._gentle else 1.0
            self._optimizer.max_change_total = self._bound / shorter
        if self._dropout is not None:
            share = self._dropout.at(self._seen)
            for module in self._model.modules():
                if isinstance(module, nn.Dropout):
                    module.p = share
