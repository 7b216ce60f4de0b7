"""What a strategy declares is all that Unisono needs to know, also of one from outside."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from unisono.config import Config
from unisono.errors import UserError
from unisono.strategies import names, registry
from unisono.strategies.base import Momentum, Sharding, Strategy, describe
from unisono.strategies.registry import make
from unisono.training.builders import strategy_of
from unisono.training.rates import folds_momentum, rate_factor

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "own_strategy.py"


class FakeEntry:
    """An entry point of another package."""

    name = "from-outside"

    @staticmethod
    def load() -> type[Strategy]:
        found: type[Strategy] = load_example().PartialAveraging
        return found


def load_example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("own_strategy", EXAMPLE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look their annotations up
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def _partial_averaging(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "entry_points", lambda group: [FakeEntry])


@pytest.mark.usefixtures("_partial_averaging")
def test_options_in_examples_of_a_strategy_from_outside_are_divided_for_chunks() -> None:
    chosen = {"name": "from-outside", "every": 6400}
    frames = strategy_of(Config(learners="2", model="dnn", strategy=chosen))
    chunks = strategy_of(Config(learners="2", model="tdnn", strategy=chosen))
    assert (frames.every, chunks.every) == (6400, 200)  # type: ignore[attr-defined]


@pytest.mark.usefixtures("_partial_averaging")
def test_a_strategy_from_outside_has_the_declared_rate_and_momentum() -> None:
    config = Config(learners="2", strategy={"name": "from-outside"})
    assert "from-outside" in names()
    assert rate_factor(config) == 2.0
    assert not folds_momentum(config)


@pytest.mark.parametrize("name", [n for n in names() if n != "solo"])
def test_every_strategy_links_its_paper_and_says_who_waits(name: str) -> None:
    strategy = make(name)
    assert strategy.paper.startswith("https://")
    lines = describe(strategy, 4)
    assert lines[0].startswith(f"strategy  {name}")
    assert "object at" not in "".join(lines)


def test_a_server_of_gradients_folds_momentum_into_its_rate() -> None:
    gradients, changes = make("server", {"push": "gradient"}), make("server")
    assert gradients.momentum is Momentum.FOLDED
    assert changes.momentum is make("averaging").momentum is Momentum.LOCAL
    assert changes.rate_factor(8) == 8.0 > gradients.rate_factor(8)
    assert make("averaged-server").rate_factor(8) == 15.0
    assert changes.rate_factor(1) == make("averaging").rate_factor(1) == 1.0


def test_an_option_for_code_alone_is_no_option_of_a_configuration() -> None:
    with pytest.raises(UserError, match="has no option 'selection'"):
        make("averaging", {"selection": "all"})


def test_choices_are_declared_with_their_settings() -> None:
    strategy = make(
        "averaging", {"outer": {"name": "nesterov", "rate": 0.5}, "sharding": "dynamic"}
    )
    assert strategy.outer.rate == 0.5  # type: ignore[attr-defined]
    assert strategy.sharding is Sharding.DYNAMIC  # type: ignore[attr-defined]
    with pytest.raises(UserError, match="nesterov has no setting 'speed'"):
        make("averaging", {"outer": {"name": "nesterov", "speed": 1}})
