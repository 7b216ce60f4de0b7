"""What goes wrong in the cluster of a hosts file: drawn from a seed, the same for the same seed."""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterator, Sequence

from unisono.simulation.fault_tables import FaultKind, FaultTable
from unisono.simulation.faults import Disturbances, Fault, Join, Kill, Partition, Straggler
from unisono.simulation.hosts import Hosts, HostTable

HOUR = 3600.0

AnyFault = Fault | Partition


def disturbances_of(hosts: Hosts, seed: int) -> Disturbances:
    """All that goes wrong: at the times of ``[[fault]]``, and at random."""
    numbers, learner = {}, 0
    for host in hosts.host:
        numbers[host.name] = range(learner, learner + host.learners)
        learner += host.learners
    stragglers = {
        number: _straggler(host, random.Random(f"{seed} straggler {number}"))
        for host in hosts.host
        if host.straggler is not None
        for number in numbers[host.name]
    }
    late = {n for f in hosts.fault if f.kind is FaultKind.JOIN for n in numbers[f.host]}
    first = hosts.host[0].name
    faults = [f for each in hosts.fault for f in _timed(each, numbers[each.host], first)]
    drawn = [
        _drawn(host, numbers[host.name], first, random.Random(f"{seed} faults of {host.name}"))
        for host in hosts.host
        if host.deaths_per_hour or host.partitions_per_hour
    ]
    return Disturbances(
        stragglers, frozenset(late), faults, heapq.merge(*drawn, key=lambda fault: fault.at)
    )


def _straggler(host: HostTable, source: random.Random) -> Straggler:
    table = host.straggler
    assert table is not None
    return Straggler(table.factor, table.share, table.from_s, table.for_s, table.every_s, source)


def _timed(fault: FaultTable, numbers: Sequence[int], first: str) -> list[AnyFault]:
    if fault.kind is FaultKind.JOIN:
        return [Join(fault.at_s, number) for number in numbers]
    if fault.kind is FaultKind.PARTITION:
        assert fault.for_s is not None
        return [Partition(fault.at_s, numbers, fault.for_s, fault.host == first)]
    faults: list[AnyFault] = [Kill(fault.at_s, number) for number in numbers]
    if fault.back_after_s is not None:
        faults += [Join(fault.at_s + fault.back_after_s, number) for number in numbers]
    return faults


def _drawn(
    host: HostTable, numbers: Sequence[int], first: str, source: random.Random
) -> Iterator[AnyFault]:
    """Deaths and partitions of a host, with exponential times between them, in order."""
    return heapq.merge(
        _deaths(host, numbers, random.Random(source.random())),
        _partitions(host, numbers, first, random.Random(source.random())),
        key=lambda fault: fault.at,
    )


def _deaths(host: HostTable, numbers: Sequence[int], source: random.Random) -> Iterator[AnyFault]:
    now = 0.0
    while host.deaths_per_hour:
        now += source.expovariate(host.deaths_per_hour / HOUR)
        yield from (Kill(now, number) for number in numbers)
        if host.back_after_s is None:
            return
        now += source.expovariate(1 / host.back_after_s)
        yield from (Join(now, number) for number in numbers)


def _partitions(
    host: HostTable, numbers: Sequence[int], first: str, source: random.Random
) -> Iterator[AnyFault]:
    now = 0.0
    while host.partitions_per_hour:
        now += source.expovariate(host.partitions_per_hour / HOUR)
        seconds = source.expovariate(1 / host.partition_s)
        yield Partition(now, numbers, seconds, host.name == first)
        now += seconds
