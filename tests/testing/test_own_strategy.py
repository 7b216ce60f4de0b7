"""The example of a strategy outside of the package: it passes the suite, and is short."""

from __future__ import annotations

import ast
import importlib.util
import sys
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import unisono
from support.thread_cluster import ThreadCluster
from unisono.strategies import Sharding, make
from unisono.testing import Promises, check_strategy
from unisono.testing.properties import check_contraction, check_on, check_same

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_strategy.py"
PROMISES = Promises(ends_equal=False)


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("own_strategy", EXAMPLE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["own_strategy"] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("sharding", Sharding)
def test_it_passes_the_suite(example: ModuleType, sharding: Sharding) -> None:
    check_strategy(
        lambda: example.PartialAveraging(every=8, sharding=sharding),
        schedulers=40,
        promises=PROMISES,
    )


@pytest.mark.parametrize("sharding", Sharding)
def test_it_passes_on_threads(example: ModuleType, sharding: Sharding) -> None:
    check_on(
        ThreadCluster,
        lambda: example.PartialAveraging(every=8, sharding=sharding),
        promises=PROMISES,
    )


def test_learners_do_not_end_where_the_mean_is(example: ModuleType) -> None:
    """The promise that it does not make would not hold."""
    with pytest.raises(AssertionError, match="final parameters"):
        check_strategy(lambda: example.PartialAveraging(every=8), schedulers=0)


def test_pulled_all_the_way_it_is_averaging(example: ModuleType) -> None:
    static = Sharding.STATIC
    check_same(
        lambda: example.PartialAveraging(every=8, sharding=static, pull=1.0),
        lambda: Deferred(every=8, sharding=static),
    )


class Deferred(unisono.Averaging):
    """Static averaging whose result comes as a delta in the next update, as the example's does."""

    def participant(self, replica: Any) -> Any:
        participant = super().participant(replica)
        participant._static = False
        participant.end_of_round = participant.sync  # type: ignore[method-assign]
        return participant


def test_not_pulled_at_all_its_learners_go_their_own_ways(example: ModuleType) -> None:
    with pytest.raises(AssertionError, match="do not come together"):
        check_contraction(lambda: example.PartialAveraging(every=8, pull=0.0))


def test_it_is_found_by_its_name(example: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    group = "unisono.strategies"
    points = EntryPoints([EntryPoint("partial-averaging", "own_strategy:PartialAveraging", group)])
    monkeypatch.setattr("unisono.strategies.registry.entry_points", lambda group: points)
    made = make("partial-averaging", {"pull": 0.3, "sharding": "static"})
    assert made == example.PartialAveraging(pull=0.3, sharding=Sharding.STATIC)


def test_an_instance_goes_into_a_loop_of_ones_own(example: ModuleType) -> None:
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = [(torch.ones(3), torch.ones(1))] * 40
    with unisono.Learner(model, optimizer, example.PartialAveraging(every=8)) as learner:
        for x, y in learner.draw(data, batch_size=4):
            learner.step(((model(x) - y) ** 2).mean())
        assert learner.rounds > 0


def test_it_has_less_than_forty_lines_of_code() -> None:
    """Imports, docstrings and the run at the end apart."""
    lines: set[int] = set()
    tree = ast.parse(EXAMPLE.read_text())
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            for part in ast.walk(node):
                if isinstance(part, ast.stmt) and not _is_text(part):
                    lines.add(part.lineno)
    assert 20 < len(lines) < 40


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
