"""What ``unisono compare`` runs: strategies with their options, rates and seeds."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from unisono.config import Config, OptimizerChoice, ValidationChoice, load
from unisono.errors import UserError
from unisono.strategies.registry import make

BASELINE = "solo"
OPTIMIZER = "optimizer"
_OPTION = re.compile(r"[A-Za-z_][\w.]*=[\w.+-]+")


@dataclass(frozen=True)
class Variant:
    """A strategy with options of its own, as ``name`` or ``name:key=value:key=value``."""

    name: str

    @property
    def strategy(self) -> str:
        """The strategy's one word."""
        return self.name.partition(":")[0]

    @property
    def options(self) -> list[str]:
        """Its options, ``key=value``."""
        return self.name.split(":")[1:]

    @property
    def optimizer(self) -> str:
        """Its own optimizer, the option ``optimizer``; empty: that of all."""
        named = [o.partition("=")[2] for o in self.options if o.startswith(f"{OPTIMIZER}=")]
        return named[-1] if named else ""

    @property
    def folder(self) -> str:
        """The name as a folder: a colon means a host to rsync and scp, and ends a path in PATH."""
        return self.name.replace(":", "+")


@dataclass(frozen=True)
class ComparisonRun:
    """One run of a comparison."""

    variant: Variant
    rate: float
    seed: int
    config: Config
    path: Path


@dataclass(frozen=True, kw_only=True)
class Plan:
    """All runs of a comparison: every variant with every rate and every seed.

    Attributes:
        base: the configuration that all share, with the start rate that ``rates`` multiply.
        sets: the ``--set`` texts that made it.
        variants: solo first, with each of its optimizers.
        rates: multiples of the start rate.
        seeds: from the base's own seed on.
    """

    base: Config
    sets: Sequence[str]
    variants: Sequence[Variant]
    rates: Sequence[float]
    seeds: Sequence[int]

    def jobs(self, out: Path) -> Iterator[ComparisonRun]:
        """The runs, seed by seed, so that an interrupted comparison has all of the first seeds."""
        for seed in self.seeds:
            for variant in self.variants:
                for rate in self.rates:
                    yield self.job(out, variant, rate, seed)

    def job(self, out: Path, variant: Variant, rate: float, seed: int) -> ComparisonRun:
        """One run as the base says, but solo has one learner, and servers need shards."""
        learners = "1" if variant.strategy == BASELINE else self.base.learners
        optimizer = self._optimizer(variant)
        chosen = {"learners": learners, "optimizer": optimizer}
        start = self.base.model_copy(update=chosen).start_rate
        sets = [
            *self.sets,
            f"optimizer={optimizer.value}",
            f"strategy.name={variant.strategy}",
            f"learners={learners}",
            f"epochs={self.base.epochs}",
            f"seed={seed}",
            f"rate.start={rate * start!r}",
            "rate.retries=0",  # a rate at which a run diverges is a result
            "validation.halves=true",
            *(f"strategy.{o}" for o in variant.options if not o.startswith(f"{OPTIMIZER}=")),
        ]
        if self.base.servers and not make(variant.strategy, {}).has_shards:
            sets.append("servers=0")
        config = load(None, sets, {"prep": self.base.prep})
        path = out / "runs" / variant.folder / f"{rate:g}" / str(seed)
        return ComparisonRun(variant, rate, seed, config, path)

    def _optimizer(self, variant: Variant) -> OptimizerChoice:
        if not variant.optimizer:
            return self.base.optimizer
        return load(None, [f"optimizer={variant.optimizer}"], {}).optimizer


def read_variants(text: str, solo_optimizers: Sequence[str] = ()) -> list[Variant]:
    """Reads ``a,b:key=value,c``; solo is put first, said or not, and with each optimizer.

    Raises:
        UserError: nothing is named, something is named twice, or an option is not key=value.
    """
    names = [part.strip() for part in text.split(",")]
    if not all(names):
        raise UserError(f"--strategies {text!r} names nothing; for example allreduce,averaging")
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"--strategies names {name} twice: once is enough")
        for option in name.split(":")[1:]:
            if not _OPTION.fullmatch(option):
                raise UserError(
                    f"--strategies: {option!r} of {name!r} is not an option; options are "
                    "key=value after a colon each, as in averaging:sharding=static:every=4096"
                )
    solos = [BASELINE, *(f"{BASELINE}:{OPTIMIZER}={each}" for each in solo_optimizers)]
    solos += [name for name in names if name.partition(":")[0] == BASELINE]
    others = [name for name in names if name not in solos]
    return [Variant(name) for name in dict.fromkeys([*solos, *others])]


def read_rates(text: str) -> list[float]:
    """Reads ``0.5,1,2``, and sorts it.

    Raises:
        UserError: something is not a number above 0, or is there twice.
    """
    rates: list[float] = []
    for part in text.split(","):
        try:
            rate = float(part)
        except ValueError:
            rate = math.nan
        if not (math.isfinite(rate) and rate > 0):
            raise UserError(f"--rates {text!r}: {part!r} is not a number above 0")
        if f"{rate:g}" in {f"{other:g}" for other in rates}:
            raise UserError(f"--rates {text!r} has {part.strip()} twice: once is enough")
        rates.append(rate)
    return sorted(rates)


def plan_comparison(
    *,
    prep: Path | None,
    strategies: str,
    learners: int,
    rates: str,
    seeds: int,
    epochs: int | None,
    sets: Sequence[str],
    solo_optimizers: str = "",
) -> Plan:
    """Reads what a user asks for.

    Raises:
        UserError: something of it cannot be read, or is not for all strategies alike.
    """
    prepared = None if prep is None else str(prep)
    flags = {"prep": prepared, "learners": learners, "epochs": epochs}
    base = load(None, sets, flags)
    if "name" in base.strategy:
        raise UserError(f"--set strategy.name={base.strategy['name']}: name it in --strategies")
    if base.strategy:
        key = next(iter(base.strategy))
        raise UserError(f"--set strategy.{key} is not for all: say it as in averaging:{key}=VALUE")
    if not base.validation.enabled:
        raise UserError("--set validation.enabled=false: without checks nothing can be compared")
    if base.validation.on is ValidationChoice.NONE:
        raise UserError("--set validation.on=none: without checks nothing can be compared")
    others = [name.strip() for name in solo_optimizers.split(",") if name.strip()]
    solo = base.model_copy(update={"learners": "1"}).chosen_optimizer
    others = [name for name in others if name != solo.value]
    return Plan(
        base=base,
        sets=list(sets),
        variants=read_variants(strategies, others),
        rates=read_rates(rates),
        seeds=range(base.seed, base.seed + seeds),
    )
