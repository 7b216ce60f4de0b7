"""Kaldi's rules as a learner follows them, round by round."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from support.trainings import train_with_forks
from unisono.config import Config, load
from unisono.data import FrameSource, Part, Prep
from unisono.errors import UserError
from unisono.models import build
from unisono.optim import NaturalGradientSGD
from unisono.strategies import AllModels, Averaging, Candidate, KeepGood, Sharding
from unisono.training.builders import make_optimizer
from unisono.training.kaldi.recipe import KaldiRecipe, MeanObjective, check_recipe, check_rounds
from unisono.training.objective import FrameStates
from unisono.training.rates import make_schedule
from unisono.training.train import train
from unisono.training.validation import score

KALDI = [
    "recipe.enabled=true",
    "strategy.name=averaging",
    "learners=4",
    "optimizer=ng-sgd",
    "rate.start=0.01",
    "epochs=2",
    "minibatch=10",
    "recipe.dropout=0,0.4,0",
]


class Learner:
    """Where a learner is, and what its model is."""

    def __init__(self, model: nn.Module) -> None:
        self.progress, self.rounds, self.number = 0.0, 0, 0
        self._model = model

    @contextmanager
    def consensus(self) -> Iterator[nn.Module]:
        yield self._model


def made(*sets: str) -> tuple[KaldiRecipe, Averaging, Any, nn.Sequential, torch.optim.Optimizer]:
    config = load(None, [*KALDI, *sets], {})
    model = nn.Sequential(nn.Linear(5, 5), nn.Dropout(0.1), nn.Linear(5, 3))
    optimizer = make_optimizer(config, model, 0.0)
    schedule = partial(make_schedule, config)
    rules = KaldiRecipe(config, model, optimizer, schedule, 1000, config.minibatch)
    strategy = rules.strategy(Averaging(every=50, sharding=Sharding.STATIC))
    assert isinstance(strategy, Averaging)
    return rules, strategy, Learner(model), model, optimizer


def follow(
    rules: KaldiRecipe, learner: Any, rounds: int, steps: int = 5, first: int = 0
) -> Iterator[int]:
    """The course of a run of so many rounds, or of what is left of it."""
    learner.rounds = first
    for round_ in range(first, rounds):
        for step in range(steps):
            learner.progress = (round_ * steps + step + 1) / (rounds * steps)
            rules.begin(learner)
            yield round_
            learner.rounds = round_ + (step == steps - 1)
            rules.end(learner)


def test_rate_dropout_bound_and_minibatch_of_each_round() -> None:
    """2000 examples, 4 learners, 50 each: ten rounds."""
    rules, _, learner, model, optimizer = made()
    assert isinstance(optimizer, NaturalGradientSGD)
    x, y = torch.zeros(6, 5), torch.zeros(6)
    for round_ in follow(rules, learner, 10):
        seen = round_ / 10
        wanted = 4 * 0.01 * 0.1 ** (1.0 if round_ == 9 else seen)
        wanted /= 2 if round_ == 0 else 1  # a sum over half a minibatch is half as long
        assert optimizer.param_groups[0]["lr"] == pytest.approx(wanted)
        assert optimizer.max_change_total == pytest.approx(2 / math.sqrt(2) if round_ == 0 else 2.0)
        dropout = model[1]
        assert isinstance(dropout, nn.Dropout)
        assert dropout.p == pytest.approx(0.4 * (1 - abs(2 * seen - 1)))
        sizes = [len(part) for part, _ in rules.parts(x, y)]
        assert sizes == ([3, 3] if round_ == 0 else [6])
    assert len(rules.states) == 5  # half of ten rounds


@pytest.mark.parametrize(("minibatch", "share"), [(64, 1), (33, 2), (7, 7)])
def test_rounds_are_whole_minibatches(minibatch: int, share: int) -> None:
    """50 examples are no whole number of them; the last round ends with the final rate."""
    rules, strategy, learner, _, optimizer = made(f"minibatch={minibatch}")
    assert strategy.round_plan(minibatch).share == share
    total = 2 * math.ceil(1000 / minibatch)
    rounds, reached = math.ceil(total / (4 * share)), 0
    for round_ in range(rounds):
        for step in range(1, share + 1):
            reached = min(round_ * 4 * share + 4 * step, total)
            learner.progress = reached / total
            rules.begin(learner)
            learner.rounds = round_ + (step == share)
            rules.end(learner)
        rate = optimizer.param_groups[0]["lr"]
        assert (rate == pytest.approx(0.04 * 0.1)) == (round_ == rounds - 1)
    assert learner.progress == 1 and len(rules.states) == rounds // 2


def test_a_resumed_learner_does_what_it_would_have_done() -> None:
    """To the last bit, or the bytes of the final model would not be the same."""

    def progress(first: int) -> list[tuple[int, float, float]]:
        rules, _, learner, model, optimizer = made("recipe.dropout=0.1,0.4,0.3")
        return [
            (round_, optimizer.param_groups[0]["lr"], model[1].p)  # type: ignore[arg-type]
            for round_ in follow(rules, learner, 10, first=first)
        ]

    whole = progress(0)
    for first in range(1, 10):
        assert progress(first) == whole[5 * first :]


def test_the_last_model_is_among_the_combined_however_many_rounds_there_were() -> None:
    """Two of four learners are gone after a while: 16 rounds instead of 10."""
    rules, strategy, learner, model, _ = made()
    reached, here = 0, 4
    for round_ in range(16):
        here = 4 if round_ < 4 else 2
        for step in range(5):
            learner.progress = (reached + (step + 1) * here) / 200
            rules.begin(learner)
            with torch.no_grad():
                model[0].weight.fill_(round_)  # type: ignore[union-attr,operator]
        reached += 5 * here
        strategy.selection.weights([Candidate(50, -2.0)] * here, round_)
        learner.rounds = round_ + 1
        rules.end(learner)
    assert learner.progress == 1
    kept = [int(state["0.weight"][0, 0]) for state in rules.states]
    assert kept == list(range(kept[0], 16)) and 6 <= len(kept) <= 8


@pytest.mark.parametrize("number", [0, 3])
def test_learners_ramp_up_and_the_rate_with_them(number: int) -> None:
    """From 1 to 4 over 16 rounds of 50 examples a learner: 2000 = 50 x 16 x 2.5.

    Each learner asks for the others, since each can be removed.
    """
    asked: list[int] = []
    config = load(None, [*KALDI, "recipe.first_learners=1", "rate.weight_decay=0.02"], {})
    assert config.first_learners == 1
    model = nn.Sequential(nn.Linear(5, 5), nn.Linear(5, 3))
    optimizer = make_optimizer(config, model, 0.0)
    schedule = partial(make_schedule, config)
    rules = KaldiRecipe(config, model, optimizer, schedule, 1000, 10, ask=asked.append)
    strategy = rules.strategy(Averaging(every=50, sharding=Sharding.STATIC))
    assert isinstance(strategy, Averaging)
    learner: Any = Learner(model)
    learner.number = number
    here = 1
    for round_ in follow(rules, learner, 16, steps=1):
        last = round_ / 16 + 50 * here / 2000 >= 1
        rate = 0.01 * here * 0.1 ** (1.0 if last else round_ / 16) / (2 if round_ == 0 else 1)
        group = optimizer.param_groups[0]
        assert group["lr"] == pytest.approx(rate)
        assert group["weight_decay"] == pytest.approx(0.02 / here)
        here = asked[-1] if asked else 1  # who was asked for comes at once
        strategy.selection.weights([Candidate(50, -2.0)] * here, round_)
    assert asked == [math.floor(1 + 3 * i / 16 + 0.5) for i in range(1, 17)]


@pytest.mark.parametrize(
    ("sets", "wanted"),
    [
        ([], 2.0),
        (["rate.scaled=false"], 1.0),
        (["optimizer=sgd"], 1.0),
        (["optimizer=adamw"], 2.0),
    ],
)
def test_more_learners_have_a_higher_rate_as_the_rate_rules_say(
    sets: list[str], wanted: float
) -> None:
    """Eight take part after the first of twenty rounds, which four began."""
    rules, strategy, learner, _, optimizer = made(*sets, "recipe.rate_by_round=false")
    learner.progress, learner.rounds = 0.05, 0
    rules.begin(learner)
    gentle = optimizer.param_groups[0]["lr"]
    strategy.selection.weights([Candidate(50, -2.0)] * 8, 0)
    learner.rounds = 1
    rules.end(learner)
    rules.begin(learner)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(2 * gentle * wanted)


def test_each_rule_can_be_turned_off() -> None:
    off = ["best_first=false", "gentle_first=false", "gap=0", "combine=0", "rate_by_round=false"]
    rules, strategy, learner, model, optimizer = made(
        *(f"recipe.{key}" for key in off), "recipe.dropout=''"
    )
    assert isinstance(optimizer, NaturalGradientSGD)
    assert isinstance(strategy.selection, KeepGood)
    assert (strategy.selection.gap, strategy.selection.best_first) == (0.0, False)
    for _ in follow(rules, learner, 10):
        assert optimizer.param_groups[0]["lr"] == pytest.approx(0.04 * 0.1**learner.progress)
        assert optimizer.max_change_total == 2.0
        assert isinstance(model[1], nn.Dropout) and model[1].p == 0.1
        assert len(list(rules.parts(torch.zeros(6, 5), torch.zeros(6)))) == 1
    assert rules.states == []
    whole = load(None, ["learners=4", "strategy.name=averaging"], {})
    unruled = KaldiRecipe(whole, model, optimizer, partial(make_schedule, whole), 1000, 10)
    plain = unruled.strategy(Averaging(every=50, sharding=Sharding.STATIC))
    assert isinstance(plain, Averaging) and isinstance(plain.selection, AllModels)


def test_decay_is_shared_by_the_learners() -> None:
    """J learners at J times the rate pull as one would: 2 l2 lr N / J each, in Kaldi's words."""
    decay = ["rate.weight_decay=0.02"]
    whole = load(None, [*KALDI, *decay, "recipe.divide_decay=false"], {})
    shared = load(None, [*KALDI, *decay], {})
    model = nn.Linear(5, 5)
    for config, wanted in ((whole, 0.02), (shared, 0.02 / 4)):
        assert make_optimizer(config, model, 0.1).param_groups[0]["weight_decay"] == wanted


def test_the_objective_is_the_mean_log_prob_since_it_was_asked() -> None:
    objective = MeanObjective()
    assert objective.take() is None
    objective.add(torch.tensor(2.0), 10)
    objective.add(torch.tensor(5.0), 30)
    assert objective.take() == pytest.approx(-(2 * 10 + 5 * 30) / 40)
    assert objective.take() is None


@pytest.mark.parametrize("other", ["strategy.name=gossip-random", "strategy.sharding=dynamic"])
def test_it_is_for_static_averaging_only(other: str) -> None:
    config: Config = load(None, ["recipe.enabled=true", "learners=2", other], {})
    with pytest.raises(UserError, match="use --strategy averaging, and not"):
        check_recipe(config)


def test_the_example_has_the_numbers_of_kaldi() -> None:
    """3e-4 a frame of a sum, minibatches of 512; 8 jobs."""
    file = Path(__file__).parents[3] / "examples" / "kaldi.toml"
    config = load(file, [], {"learners": 8})
    check_recipe(config)
    schedule = make_schedule(config)
    assert schedule.rate(0.0) == pytest.approx(8 * 3e-4 * 512, rel=0.03)
    assert schedule.rate(1.0) == pytest.approx(8 * 3e-5 * 512, rel=0.03)
    kaldi = config.natural_gradient
    assert (kaldi.rank_in, kaldi.rank_out) == (20, 80)
    assert (kaldi.update_period, kaldi.num_samples_history, kaldi.alpha) == (4, 2000.0, 4.0)
    bounds = (kaldi.max_change, kaldi.max_change_output, kaldi.max_change_total)
    assert bounds == (0.75, 1.5, 2.0)
    assert (config.minibatch, config.strategy_options["every"]) == (512, 400_000)


def test_a_run_of_one_round_is_refused_with_a_pace_that_fits() -> None:
    config = load(None, [*KALDI, "strategy.every=400000"], {})
    with pytest.raises(UserError, match=r"nothing is averaged; set it to 5000, say"):
        check_rounds(config, 200_000)
    check_rounds(load(None, [*KALDI, "strategy.every=5000"], {}), 200_000)
    check_rounds(load(None, ["learners=4", "strategy.every=400000"], {}), 200_000)


def test_more_at_the_start_than_there_are_is_refused() -> None:
    config = load(None, ["recipe.enabled=true", "learners=2", "recipe.first_learners=3"], {})
    with pytest.raises(UserError, match="first_learners is 3, and the run has 2"):
        check_recipe(config)
    sets = ["recipe.enabled=true", "learners=1:4", "recipe.first_learners=2", "cluster=auto"]
    with pytest.raises(UserError, match="on a cluster use --learners MIN:MAX"):
        check_recipe(load(None, sets, {}))


@pytest.mark.long
@pytest.mark.timeout(400)
def test_a_run_whose_learners_ramp_up(prep: Path, tmp_path: Path) -> None:
    """The second learner comes when a quarter of the rounds are over, and trains its share."""
    sets = ["recipe.enabled=true", "learners=2", "strategy.name=averaging", "strategy.every=1280"]
    sets += ["recipe.first_learners=1", "network.hidden=[256,256]", "epochs=25", "threads=1"]
    sets += ["minibatch=128", "device=cpu", "validation.every=1000000", "timeout_s=60"]
    out = tmp_path / "run"
    summary = train(load(None, sets, {"prep": str(prep)}), out)
    events = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    left = {e["learner"]: e["examples"] for e in events if e["event"] == "left"}
    assert summary.learners_joined == 1 and summary.ended == "finished"
    assert set(left) == {0, 1} and 0 < left[1] < left[0]
    counts = summary.minibatches
    assert counts.committed + counts.skipped == 25 * math.ceil(
        Prep.open(prep).frames_of(Part.TRAIN) / 128
    )


@pytest.mark.timeout(150)
def test_a_run_by_the_recipe(prep: Path, tmp_path: Path) -> None:
    """Two learners: the first round leaves one out, the final model is the best combination."""
    sets = [
        "recipe.enabled=true",
        "learners=2",
        "strategy.name=averaging",
        "strategy.every=1280",
        "strategy.restart_optimizer=true",
        "optimizer=ng-sgd",
        "rate.momentum=0.0",
        "network.hidden=[32]",
        "network.batch_norm=true",
        "epochs=1",
        "threads=1",
        "minibatch=128",
        "device=cpu",
        "timeout_s=60",
    ]
    out = tmp_path / "run"
    summary = train_with_forks(load(None, sets, {"prep": str(prep)}), out)
    events = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    rounds = [e for e in events if e["event"] == "round"]
    left_out = [e["round"] for e in rounds if e.get("left_out")]
    assert left_out.count(0) == 1
    share = 1280 // 128
    assert summary.minibatches.skipped == share * len(left_out)
    assert summary.minibatches.committed + summary.minibatches.skipped == math.ceil(
        Prep.open(prep).frames_of(Part.TRAIN) / 128
    )
    combined = next(e for e in events if e["event"] == "combined")
    assert 1 <= combined["models"] <= combined["of"] == summary.rounds // 2
    assert summary.validation_logprob == pytest.approx(combined["logprob"], abs=1e-6)
    description = json.loads((out / "model.json").read_text())
    shape = {k: description[k] for k in ("inputs", "outputs", "hidden", "dropout", "batch_norm")}
    model = build("dnn", seed=0, **shape)
    model.load_state_dict(load_file(out / "model.safetensors"))
    heldout = FrameSource(Prep.open(prep), Part.HELDOUT, context=description["context"])
    again = score(FrameStates(), model, heldout, 20000, torch.device("cpu"))
    assert again.logprob == pytest.approx(summary.validation_logprob, abs=1e-5)
