"""Every fabric passes the same suite."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from support.conformance import Ability, Case, Stage, cases
from support.fabrics import RealProcesses, Setup, Simulated, Threads
from unisono.fabric import COORDINATOR, Fabric, learner
from unisono.fabric.simulated.kernel import DeadlockError
from unisono.fabric.simulated.schedulers import SeededScheduler

SETUPS: dict[str, Setup] = {
    "simulated": Simulated(),
    "one host": Threads(sockets=False),
    "several hosts": Threads(sockets=True),
    "processes": RealProcesses(),
    "processes on a network": RealProcesses(network=True),
}

HARNESSES = [name for name in SETUPS if name != "processes on a network"]
"""Set-ups that differ in how players are brought on and watched."""


def staged(names: Iterable[str]) -> list[Any]:
    return [
        pytest.param(name, case, id=f"{name}-{case.name}")
        for name in names
        for case in cases(SETUPS[name].abilities)
    ]


@pytest.mark.parametrize(("setup", "case"), staged(SETUPS))
def test_conforms(setup: str, case: Case) -> None:
    SETUPS[setup].run(case)


@pytest.mark.usefixtures("_hectic")
@pytest.mark.parametrize(("setup", "case"), staged(["one host", "several hosts"]))
def test_conforms_when_threads_switch_all_the_time(setup: str, case: Case) -> None:
    SETUPS[setup].run(case)


@pytest.mark.long
@pytest.mark.usefixtures("_hectic")
@pytest.mark.parametrize("case", cases([Ability.RETURN]), ids=lambda case: case.name)
def test_conforms_on_a_network_when_threads_switch_all_the_time(case: Case) -> None:
    Threads(sockets=True, network=True).run(case)


@pytest.mark.parametrize("case", cases(Ability), ids=lambda case: case.name)
def test_conforms_under_random_schedules(case: Case) -> None:
    large = case.name == "a_hundred_megabytes_arrive_intact"
    for seed in range(1 if large else 12):
        Simulated(lambda seed=seed: SeededScheduler(seed, switching=0.1 + 0.07 * seed)).run(case)


@pytest.mark.long
@pytest.mark.parametrize("case", cases(Ability), ids=lambda case: case.name)
def test_conforms_under_many_random_schedules(case: Case) -> None:
    large = case.name == "a_hundred_megabytes_arrive_intact"
    for seed in range(100, 110 if large else 600):
        Simulated(lambda seed=seed: SeededScheduler(seed, switching=0.5)).run(case)


def wrong(node: Fabric, stage: Stage) -> None:
    assert node.address != learner(1), "learner 1 has found something"
    node.receive("never")


def hangs(node: Fabric, stage: Stage) -> None:
    node.receive("never")


@pytest.mark.parametrize("setup", HARNESSES)
def test_a_failure_of_one_player_ends_the_case(setup: str) -> None:
    case = Case(wrong, (learner(0), learner(1), COORDINATOR))
    with pytest.raises(AssertionError, match="learner 1 has found something"):
        SETUPS[setup].run(case)


@pytest.mark.parametrize("setup", HARNESSES)
def test_who_hangs_is_named_with_the_place(setup: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("support.fabrics.LIMIT", 2.0 if setup == "processes" else 1.0)
    case = Case(hangs, (learner(0),))
    with pytest.raises(
        (DeadlockError, TimeoutError, AssertionError), match=r"(?s)learner.0.*hangs"
    ):
        SETUPS[setup].run(case)
