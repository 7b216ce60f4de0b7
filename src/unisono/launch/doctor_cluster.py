"""``unisono doctor --cluster``: each machine looks at itself, and at its links to the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

from unisono.errors import UserError
from unisono.fabric import Address, Member, TimedOut
from unisono.fabric.local.host import Host
from unisono.fabric.network.auth import make_credentials
from unisono.fabric.network.link_probe import LinkMeasurement, echo, probe, wall_clock
from unisono.fabric.network.tcp_listener import NetworkSettings
from unisono.launch.doctor import Finding, Pair, Severity, judge, judge_company
from unisono.launch.machine import Machine, survey
from unisono.launch.ray_engine import NODE_LABEL, Node, entered, living_nodes

ALL_PAIRS = 8
"""Machines up to which every link is measured; of more, each one's to the next."""
_LIMIT_S = 120.0


class Examiner:
    """On one machine of the cluster, as an actor."""

    def __init__(self, number: int, head: str, credentials: str) -> None:
        network = NetworkSettings.towards(f"tcp:{head}:1", credentials)
        self._interface = network.describe()
        self._host = Host(network=network)
        node = self._node = self._host.node(Address("doctor", number))
        node.spawn("echo", lambda: echo(node))

    def look(self) -> tuple[Machine, str, str]:
        """The machine, the interface in use, and where it is reached."""
        return survey(), self._interface, self._host.endpoint

    def clock(self) -> float:
        """What its clock says."""
        return wall_clock()

    def meet(self, endpoints: Sequence[str]) -> None:
        """Learns where all the others are."""
        for number, endpoint in enumerate(endpoints):
            self._node.meet(Member(Address("doctor", number), endpoint))

    def measure(self, other: int) -> LinkMeasurement | None:
        """The link to another machine; None if there is no way."""
        try:
            return probe(self._node, Address("doctor", other))
        except TimedOut:
            return None


def examine_cluster(address: str) -> list[Finding]:
    """Every machine of a cluster, and the links between them."""
    with entered(address) as ray:
        nodes = living_nodes(ray)
        credentials = make_credentials()
        actors = [_start(ray, number, node, credentials) for number, node in enumerate(nodes)]
        looks = [_get(ray, node, a.look.remote()) for node, a in zip(nodes, actors, strict=True)]
        names = _names([machine.host for machine, _, _ in looks])
        endpoints = [endpoint for _, _, endpoint in looks]
        skews = [_skew(ray, node, actor) for node, actor in zip(nodes, actors, strict=True)]
        for node, actor in zip(nodes, actors, strict=True):
            _get(ray, node, actor.meet.remote(endpoints))
        pairs = [
            Pair(names[a], names[b], _get(ray, nodes[a], actors[a].measure.remote(b)))
            for a, b in pairs_of(len(nodes))
        ]
    machines = [
        replace(machine, host=name) for (machine, _, _), name in zip(looks, names, strict=True)
    ]
    findings = []
    for machine, (_, interface, _), node in zip(machines, looks, nodes, strict=True):
        findings += judge(machine)
        findings.append(Finding(machine.host, "listens on", interface))
        findings.append(_room(machine.host, node))
    return findings + judge_company(machines, skews, pairs)


def pairs_of(count: int) -> list[tuple[int, int]]:
    """Whose links are measured."""
    if count <= ALL_PAIRS:
        return list(combinations(range(count), 2))
    return [(number, (number + 1) % count) for number in range(count)]


def _start(ray: Any, number: int, node: Node, credentials: str) -> Any:
    place = {NODE_LABEL: node.id}
    actor = ray.remote(Examiner).options(num_cpus=0, label_selector=place)
    return actor.remote(number, ray.util.get_node_ip_address(), credentials)


def _get(ray: Any, node: Node, reference: Any) -> Any:
    try:
        return ray.get(reference, timeout=_LIMIT_S)
    except ray.exceptions.RayError as error:
        last = str(error).strip().splitlines()[-1]
        raise UserError(f"{node.host} cannot be examined: {last}") from None


def _skew(ray: Any, node: Node, actor: Any) -> float:
    """Seconds that a machine's clock is ahead: the best of a few questions."""
    tries = []
    for _ in range(5):
        began = wall_clock()
        theirs: float = _get(ray, node, actor.clock.remote())
        took = wall_clock() - began
        tries.append((took, theirs - began - took / 2))
    return min(tries)[1]


def _names(hosts: Sequence[str]) -> list[str]:
    """Hosts, told apart where several have one name."""
    names = []
    for place, host in enumerate(hosts):
        again = list(hosts[:place]).count(host)
        names.append(f"{host}#{again + 1}" if again else host)
    return names


def _room(host: str, node: Node) -> Finding:
    """What Ray may use of it."""
    found = f"{node.cores} cores, {node.gpus} GPUs"
    if node.cores or node.gpus:
        return Finding(host, "lent to Ray", found)
    advice = "no learner has room here: ray start --num-cpus"
    return Finding(host, "lent to Ray", found, Severity.ADVICE, advice)
