"""In what numbers averages travel, where the user does not say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from unisono.config import Config, load
from unisono.errors import UserError
from unisono.runs.directory import RunDirectory
from unisono.training.link_precision import decide_link_precision, with_link_precision
from unisono.training.resumption import check_resumable


def config(*sets: str, learners: int = 4) -> Config:
    return load(None, list(sets), {"learners": str(learners)})


def precision(config: Config) -> Any:
    return config.strategy_options.get("precision")


def test_averages_between_hosts_travel_in_int8() -> None:
    assert precision(with_link_precision(config(), several_hosts=True)) == "int8"
    assert with_link_precision(config(), several_hosts=False) == config()


@pytest.mark.parametrize(
    "sets",
    [
        ["strategy.precision=float32"],
        ["strategy.precision=int4"],
        ["strategy.sharding=static"],
        ["strategy.name=allreduce"],
        ["strategy.name=gossip-random"],
        ["strategy.name=elastic"],
        ["recipe.enabled=true"],
    ],
    ids=str,
)
def test_the_users_word_and_runs_that_repeat_stay_as_they_are(sets: list[str]) -> None:
    """Static sharding promises the same bytes wherever the learners are; so does the recipe."""
    assert with_link_precision(config(*sets), several_hosts=True) == config(*sets)


def test_one_learner_sends_nothing() -> None:
    alone = config(learners=1)
    assert with_link_precision(alone, several_hosts=True) == alone


@pytest.mark.parametrize("began", [False, True], ids=["one host", "several hosts"])
@pytest.mark.parametrize("now", [False, True], ids=["one host", "several hosts"])
def test_a_run_stays_as_it_began_when_it_is_resumed(tmp_path: Path, began: bool, now: bool) -> None:
    out = tmp_path / "run"
    first = decide_link_precision(config(), out, resume=False, several_hosts=began)
    run = RunDirectory.create(out, first, resume=False)
    recorded = load(run.config, [], {})
    again = decide_link_precision(recorded, out, resume=True, several_hosts=now)
    assert precision(again) == ("int8" if began else None)
    check_resumable(run, again)


@pytest.mark.parametrize("now", [False, True], ids=["one host", "several hosts"])
def test_the_command_that_began_a_run_resumes_it(tmp_path: Path, now: bool) -> None:
    """The file of a job script knows nothing of what was decided; what it says must fit."""
    out = tmp_path / "run"
    first = decide_link_precision(config(), out, resume=True, several_hosts=True)
    run = RunDirectory.create(out, first, resume=True)
    (run.checkpoints / "00000001").mkdir()
    again = decide_link_precision(config(), out, resume=True, several_hosts=now)
    assert precision(again) == "int8"
    check_resumable(run, again)
    other = config("strategy.precision=float32")
    other = decide_link_precision(other, out, resume=True, several_hosts=now)
    with pytest.raises(UserError, match=r"strategy.precision = int8; --resume cannot change it"):
        check_resumable(run, other)


def test_a_run_that_is_resumed_before_it_began_is_a_new_one(tmp_path: Path) -> None:
    found = decide_link_precision(config(), tmp_path / "none", resume=True, several_hosts=True)
    assert precision(found) == "int8"
