from __future__ import annotations

from dataclasses import replace

import pytest

from unisono.fabric.network.link_probe import LinkMeasurement
from unisono.launch.doctor import Pair, Severity, judge, judge_company, measure_here
from unisono.launch.doctor_cluster import ALL_PAIRS, pairs_of
from unisono.launch.machine import Disk, Interface, Machine, survey

GIB = 2**30
GOOD = Machine(
    host="alpha",
    unisono="1.0",
    python="3.11.7",
    torch="2.13.0+cpu",
    gpus=(),
    cores=8,
    cores_of_all=8,
    memory=32 * GIB,
    memory_free=30 * GIB,
    shared_memory=16 * GIB,
    files=65536,
    files_most=65536,
    interfaces=(Interface("eth0", True, 1000),),
    disks=(Disk("/work", 20 * GIB, 10 * GIB),),
    extras=(("cluster", "ray"), ("speech", "")),
)


def marks(machine: Machine) -> dict[str, Severity]:
    return {finding.what: finding.mark for finding in judge(machine)}


def test_nothing_to_change_on_a_good_machine() -> None:
    assert set(marks(GOOD).values()) == {Severity.FINE}


@pytest.mark.parametrize(
    ("change", "what", "mark"),
    [
        ({"torch": "2.10.1"}, "torch", Severity.FAULT),
        ({"torch": "3.0.0"}, "torch", Severity.FINE),
        ({"cores": 2}, "cores", Severity.ADVICE),
        ({"memory_free": GIB}, "memory", Severity.ADVICE),
        ({"memory_free": GIB // 8}, "memory", Severity.FAULT),
        ({"shared_memory": 64 * 2**20}, "/dev/shm", Severity.ADVICE),
        ({"shared_memory": None}, "/dev/shm", Severity.ADVICE),
        ({"files": 1024}, "open files", Severity.ADVICE),
        ({"files": 32, "files_most": 32}, "open files", Severity.FAULT),
        ({"disks": (Disk("/work", GIB, 10 * GIB),)}, "disk /work", Severity.ADVICE),
        ({"disks": (Disk("/work", GIB // 20, 10 * GIB),)}, "disk /work", Severity.FAULT),
        ({"anonymous_memory": False}, "anonymous memory", Severity.FAULT),
    ],
)
def test_what_is_wrong_is_found_with_what_to_do(
    change: dict[str, object], what: str, mark: Severity
) -> None:
    machine = replace(GOOD, **change)  # type: ignore[arg-type]
    assert marks(machine)[what] is mark
    others = {name: found for name, found in marks(machine).items() if name != what}
    assert set(others.values()) == {Severity.FINE}
    finding = next(f for f in judge(machine) if f.what == what)
    assert bool(finding.advice) == (mark is not Severity.FINE)


def test_extras_that_are_missing_are_named() -> None:
    (found,) = [finding for finding in judge(GOOD) if finding.what == "extras"]
    assert found.found == "speech, not cluster (no ray)" and "'unisono[cluster]'" in found.advice
    here = dict(survey().extras)
    assert set(here) == {"cluster", "speech", "demo", "mpi"}
    assert all(disk.free > 0 for disk in survey().disks)


def test_machines_are_compared() -> None:
    link = LinkMeasurement(0.0002, 1e9)
    beta = replace(GOOD, host="beta")
    fine = judge_company([GOOD, beta], [0.0, 0.1], [Pair("alpha", "beta", link)])
    assert {f.mark for f in fine} == {Severity.FINE}
    other = replace(beta, unisono="0.9", torch="2.12.0")
    found = judge_company([GOOD, other], [0.0, -3.0], [Pair("alpha", "beta", None)])
    assert {(f.where, f.what, f.mark) for f in found if f.mark is not Severity.FINE} == {
        ("all", "unisono", Severity.FAULT),
        ("all", "torch", Severity.ADVICE),
        ("beta", "clock", Severity.ADVICE),
        ("alpha", "to beta", Severity.FAULT),
    }
    slow = judge_company(
        [GOOD, beta], [0.0, 0.0], [Pair("alpha", "beta", LinkMeasurement(0.05, 1e7))]
    )
    assert slow[-1].mark is Severity.ADVICE


def test_the_machine_that_is_here() -> None:
    machine = survey()
    assert machine.cores >= 1
    assert 0 < machine.memory_free <= machine.memory
    assert "lo" in [interface.name for interface in machine.interfaces]
    pair = measure_here(machine.host)
    assert pair.link is not None
    assert 0 < pair.link.latency_s < 1
    assert pair.link.bytes_per_s > 1e6


@pytest.mark.parametrize("count", [1, 2, 5, ALL_PAIRS, ALL_PAIRS + 1, 100])
def test_every_machine_has_a_link_measured(count: int) -> None:
    pairs = pairs_of(count)
    assert {number for pair in pairs for number in pair} == (
        set(range(count)) if count > 1 else set()
    )
    assert all(a != b for a, b in pairs)
    assert len(pairs) == (count * (count - 1) // 2 if count <= ALL_PAIRS else count)
