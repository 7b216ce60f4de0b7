"""Strategies by name, with options as they stand in a configuration."""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import Enum
from importlib.metadata import EntryPoint, EntryPoints
from typing import Any, get_type_hints

import numpy as np
import pytest

from unisono.errors import UserError
from unisono.strategies import (
    AllReduce,
    Averaging,
    BlockMomentum,
    GossipRandom,
    Nesterov,
    Plain,
    Server,
    Sharding,
    Solo,
    make,
    names,
)
from unisono.strategies.base import Strategy, describe
from unisono.strategies.registry import find


@dataclass(frozen=True, kw_only=True)
class Outside(Averaging):
    """A strategy of another package."""

    strength: float = 0.5


@pytest.fixture
def entry(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if a package with an entry point were installed."""

    def entry_points(group: str) -> EntryPoints:
        assert group == "unisono.strategies"
        return EntryPoints([EntryPoint("outside", f"{__name__}:Outside", group)])

    monkeypatch.setattr("unisono.strategies.registry.entry_points", entry_points)


def test_ours_have_names() -> None:
    assert {"solo", "allreduce", "averaging"} <= set(names())
    assert make("solo") == Solo()
    assert make("allreduce") == AllReduce()
    assert make("averaging") == Averaging()


def test_options_become_what_the_dataclass_wants() -> None:
    options = {"every": 100, "sharding": "dynamic", "outer": {"name": "nesterov", "rate": 0.5}}
    expected = Averaging(every=100, sharding=Sharding.DYNAMIC, outer=Nesterov(rate=0.5))
    assert make("averaging", options) == expected
    assert make("averaging", {"outer": "plain"}) == Averaging(outer=Plain())
    assert make("averaging", {"outer": {"name": "block-momentum"}}) == Averaging(
        outer=BlockMomentum()
    )


@pytest.mark.parametrize("name", names())
def test_options_in_code_may_be_given_by_name(name: str) -> None:
    """`Averaging(precision="float32")` must not be taken for something else than float32."""
    kind = find(name)
    hints = get_type_hints(kind)
    for option in fields(kind):
        hint = hints[option.name]
        if not (isinstance(hint, type) and issubclass(hint, Enum)):
            continue
        for choice in hint:
            made = kind(**{option.name: choice.value})
            assert getattr(made, option.name) is choice
            assert made == kind(**{option.name: choice}) == make(name, {option.name: choice.value})
            assert repr(made) == repr(kind(**{option.name: choice}))
        with pytest.raises(UserError, match=f"{option.name!r} of strategy {name} is 'none'"):
            kind(**{option.name: "none"})


def test_outer_steps_in_code_may_be_given_by_name() -> None:
    assert Averaging(outer="nesterov") == Averaging(outer=Nesterov())  # type: ignore[arg-type]
    with pytest.raises(UserError, match="it can be plain, block-momentum"):
        Averaging(outer="plane")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (Server, {"shards": "4"}),
        (Server, {"push_every": 2.5}),
        (Server, {"warm_start": "0.1"}),
        (Averaging, {"restart_optimizer": "yes"}),
        (GossipRandom, {"seed": None}),
    ],
)
def test_options_in_code_of_another_type_are_refused(
    kind: type[Strategy], options: dict[str, Any]
) -> None:
    with pytest.raises(UserError, match="it must be of type") as caught:
        kind(**options)
    assert "\n" not in str(caught.value)


def test_integers_of_numpy_are_integers() -> None:
    assert repr(Server(shards=np.int64(3))) == repr(Server(shards=3))  # type: ignore[arg-type]


@pytest.mark.usefixtures("entry")
def test_a_strategy_of_another_package_is_found_by_its_entry_point() -> None:
    assert "outside" in names()
    assert make("outside", {"strength": 1, "every": 8}) == Outside(strength=1, every=8)


@pytest.mark.parametrize(
    ("name", "options", "text"),
    [
        ("averagin", {}, "there is no strategy 'averagin'; did you mean 'averaging'?"),
        ("xyz", {}, "there is no strategy 'xyz'; known are "),
        (
            "averaging",
            {"evry": 1},
            "strategy averaging has no option 'evry'; did you mean 'every'?",
        ),
        (
            "averaging",
            {"every": "a"},
            "every is 'a': it must be a number of examples from 1 on, or auto",
        ),
        ("averaging", {"sharding": "x"}, "is 'x'; it can be static, dynamic"),
        ("averaging", {"outer": "x"}, "is 'x'; it can be plain, block-momentum, slowmo, nesterov"),
        ("averaging", {"outer": {"name": "slowmo", "x": 1}}, "slowmo has no setting 'x'"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    name: str, options: dict[str, object], text: str
) -> None:
    with pytest.raises(UserError) as error:
        make(name, options)
    assert text in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "strategy", [Solo(), AllReduce(), Averaging(), Averaging(sharding=Sharding.DYNAMIC)]
)
def test_each_says_what_it_does(strategy: Solo | AllReduce | Averaging) -> None:
    lines = describe(strategy, 3)
    assert lines[0].startswith(f"strategy  {strategy.name}")
    assert all(len(line.split(maxsplit=1)) == 2 for line in lines)


def test_the_rate_rule_and_its_number_agree() -> None:
    assert AllReduce().rate_factor(4) == Averaging().rate_factor(4) == 4.0
    assert Averaging(outer=BlockMomentum()).rate_factor(4) == 1.0
    assert "gain" in Averaging(outer=BlockMomentum()).rate_rule
    assert "gain" not in Averaging().rate_rule


def test_averaging_waits_for_nobody_unless_asked_to() -> None:
    assert make("averaging").round_plan(4).sharding is Sharding.DYNAMIC
    assert make("averaging", {"sharding": "static"}).round_plan(4).sharding is Sharding.STATIC


def test_an_optimizer_is_restarted_by_rounds_of_all_alone() -> None:
    assert make("averaging", {"restart_optimizer": True, "sharding": "static"})
    with pytest.raises(UserError, match=r"set sharding=static"):
        make("averaging", {"restart_optimizer": True})
