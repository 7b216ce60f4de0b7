"""The learning rate of a run: what its configuration says, and the strategy's own rule."""

from __future__ import annotations

from unisono.config import Config, OptimizerChoice, ScheduleChoice
from unisono.errors import UserError
from unisono.optim.schedules import Constant, Exponential, Power, Scaled, Schedule, WarmUp
from unisono.strategies.base import Momentum
from unisono.strategies.registry import make

DEFAULT_END = 0.1
"""The last learning rate as a share of the first."""
SGD_LIMIT = 4.0
"""With momentum 0.9, SGD at 8 times the rate of one learner diverges however it is averaged."""


def rate_factor(config: Config, learners: int | None = None) -> float:
    """By what the rate of one learner is multiplied: the strategy's rule, where it is asked for.

    ``learners``: so many take part; by default those that the run begins with.
    """
    if not config.rate.scaled:
        return 1.0
    strategy = make(config.strategy_name, config.strategy_options)
    factor = strategy.rate_factor(learners or config.first_learners)
    if folds_momentum(config):
        return factor / (1 - config.rate.momentum)
    if config.chosen_optimizer is OptimizerChoice.SGD:
        return min(factor, SGD_LIMIT)
    return factor


def folds_momentum(config: Config) -> bool:
    """Whether momentum is given up for a larger rate, as the strategy asks."""
    strategy = make(config.strategy_name, config.strategy_options)
    return strategy.momentum is Momentum.FOLDED and config.rate.scaled


def chosen_schedule(config: Config) -> ScheduleChoice:
    """The schedule, with the strategy's filled in; who sets `rate.end` wants a rate that falls."""
    if config.rate.schedule is not ScheduleChoice.AUTO:
        return config.rate.schedule
    if config.rate.end is not None:
        return ScheduleChoice.EXPONENTIAL
    return make(config.strategy_name, config.strategy_options).schedule


def make_schedule(config: Config, learners: int | None = None) -> Schedule:
    """The schedule that the configuration names.

    Args:
        config: of the run.
        learners: so many take part; by default those that the run begins with.

    Raises:
        UserError: the warm-up is longer than the run.
    """
    rate = config.rate
    start, factor = config.start_rate * rate.factor, rate_factor(config, learners)
    if rate.warmup > config.epochs:
        raise UserError(
            f"rate.warmup is {rate.warmup:g} epochs, and the run has {config.epochs}: "
            "warm up for less, or train for more"
        )
    chosen, end = chosen_schedule(config), rate.end or DEFAULT_END
    if chosen is ScheduleChoice.WARMUP:
        return WarmUp(start=start, factor=factor, warmup=rate.warmup, epochs=config.epochs)
    inner: Schedule
    if chosen is ScheduleChoice.CONSTANT:
        inner = Constant(start=start)
    elif chosen is ScheduleChoice.EXPONENTIAL:
        inner = Exponential(start=start, end=end)
    else:
        inner = Power(start=start, end=end)
    if factor == 1.0:
        return inner
    # Kaldi has no warm-up: its recipe begins with half minibatches instead.
    warmup = 0.0 if config.recipe.enabled else rate.warmup / config.epochs
    return Scaled(inner=inner, factor=factor, warmup=warmup)
