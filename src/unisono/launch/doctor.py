"""``unisono doctor``: what the machines have, how fast their links are, and what to change."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from unisono.fabric import Address, Member
from unisono.fabric.local.host import Host
from unisono.fabric.network.link_probe import LinkMeasurement, echo, probe
from unisono.launch.machine import Disk, Machine, survey
from unisono.text import counted

OLDEST_TORCH = (2, 11)
_MIB, _GIB = 2**20, 2**30
_SKEW_S = 1.0


class Severity(Enum):
    """What a finding means for training."""

    FINE = "ok"
    ADVICE = "change"
    FAULT = "prevents training"


@dataclass(frozen=True)
class Finding:
    """One line of the doctor's table."""

    where: str
    what: str
    found: str
    mark: Severity = Severity.FINE
    advice: str = ""


@dataclass(frozen=True)
class Pair:
    """The link between two machines, or of one with itself."""

    one: str
    other: str
    link: LinkMeasurement | None
    """None: the one could not reach the other."""


def judge(machine: Machine) -> list[Finding]:
    """What one machine has, and what should be changed there."""
    findings = [
        _torch(machine),
        Finding(machine.host, "python", machine.python),
        Finding(machine.host, "unisono", machine.unisono),
        _devices(machine),
        _cores(machine),
        _memory(machine),
        _shared_memory(machine),
        _files(machine),
        *(_disk(machine, disk) for disk in machine.disks),
        _extras(machine),
        _interfaces(machine),
    ]
    if not machine.anonymous_memory:
        advice = "learners of one machine need memfd_create: a kernel of 3.17 or later, no filter"
        findings.append(Finding(machine.host, "anonymous memory", "none", Severity.FAULT, advice))
    return findings


def _torch(machine: Machine) -> Finding:
    numbers = tuple(int(n) for n in re.findall(r"\d+", machine.torch)[:2])
    oldest = ".".join(map(str, OLDEST_TORCH))
    if numbers < OLDEST_TORCH:
        advice = f"pip install 'torch>={oldest}'"
        return Finding(machine.host, "torch", machine.torch, Severity.FAULT, advice)
    return Finding(machine.host, "torch", machine.torch)


def _devices(machine: Machine) -> Finding:
    return Finding(machine.host, "devices", "; ".join(machine.gpus) or "cpu only")


def _cores(machine: Machine) -> Finding:
    if machine.cores < machine.cores_of_all:
        found = f"{machine.cores} of {machine.cores_of_all}"
        advice = f"this process may use {machine.cores}: --set threads, or widen its affinity"
        return Finding(machine.host, "cores", found, Severity.ADVICE, advice)
    return Finding(machine.host, "cores", str(machine.cores))


def _memory(machine: Machine) -> Finding:
    found = f"{machine.memory / _GIB:.1f} GiB, {machine.memory_free / _GIB:.1f} free"
    if machine.memory_free < _GIB // 4:
        advice = "a learner needs some 0.4 GiB beside model and data: end something, or add memory"
        return Finding(machine.host, "memory", found, Severity.FAULT, advice)
    if machine.memory_free < machine.cores * _GIB // 2:
        learners = max(1, int(machine.memory_free / (_GIB / 2)))
        advice = f"room for about {counted(learners, 'learner')}, fewer than cores"
        return Finding(machine.host, "memory", found, Severity.ADVICE, advice)
    return Finding(machine.host, "memory", found)


def _shared_memory(machine: Machine) -> Finding:
    """Learners share memory without names; DataLoader workers and Ray use /dev/shm."""
    room = machine.shared_memory
    if room is not None and room >= _GIB:
        return Finding(machine.host, "/dev/shm", f"{room / _GIB:.1f} GiB free")
    found = "none" if room is None else f"{room / _MIB:.0f} MiB free"
    advice = "Ray and DataLoader workers want 1 GiB: in a container, --shm-size=2g"
    return Finding(machine.host, "/dev/shm", found, Severity.ADVICE, advice)


def _files(machine: Machine) -> Finding:
    if machine.files >= 4096:
        return Finding(machine.host, "open files", f"{machine.files} a process")
    advice = f"ulimit -n {max(4096, min(machine.files_most, 65536))}"
    if machine.files_most < 4096:
        advice = "raise nofile to 65536 in /etc/security/limits.conf, and log in again"
    mark = Severity.FAULT if machine.files < 64 else Severity.ADVICE
    return Finding(machine.host, "open files", f"{machine.files} a process", mark, advice)


def _disk(machine: Machine, disk: Disk) -> Finding:
    what, found = f"disk {disk.folder}", f"{disk.free / _GIB:.1f} GiB free"
    if disk.free >= disk.wanted:
        return Finding(machine.host, what, found)
    advice = f"prepared data and checkpoints need room: keep {disk.wanted / _GIB:.0f} GiB free"
    mark = Severity.FAULT if disk.free < _GIB // 10 else Severity.ADVICE
    return Finding(machine.host, what, found, mark, advice)


def _extras(machine: Machine) -> Finding:
    """What is missing is no fault: training on a PREP needs no extra."""
    here = [extra for extra, missing in machine.extras if not missing]
    absent = [f"{extra} (no {missing})" for extra, missing in machine.extras if missing]
    found = ", ".join([*here, *(f"not {text}" for text in absent)]) or "none"
    names = ",".join(extra for extra, missing in machine.extras if missing)
    advice = f"where you need them: pip install 'unisono[{names}]'" if names else ""
    return Finding(machine.host, "extras", found, advice=advice)


def _interfaces(machine: Machine) -> Finding:
    up = [i for i in machine.interfaces if i.up]
    names = [i.name + (f" ({i.megabits} Mbit/s)" if i.megabits else "") for i in up]
    return Finding(machine.host, "interfaces", ", ".join(names) or "none")


def judge_company(
    machines: Sequence[Machine], skews: Sequence[float], pairs: Sequence[Pair]
) -> list[Finding]:
    """What the machines are to each other; ``skews``: seconds that each is ahead of this one."""
    findings = []
    for what in ("unisono", "torch", "python"):
        versions = {m.host: getattr(m, what) for m in machines}
        if len(set(versions.values())) > 1:
            found = ", ".join(f"{host}: {v}" for host, v in sorted(versions.items()))
            mark = Severity.FAULT if what == "unisono" else Severity.ADVICE
            advice = f"install the same {what} everywhere"
            findings.append(Finding("all", what, found, mark, advice))
    for machine, skew in zip(machines, skews, strict=True) if len(machines) > 1 else ():
        mark, advice = Severity.FINE, ""
        if abs(skew) > _SKEW_S:
            mark, advice = Severity.ADVICE, "set the clocks by NTP, or logs will not fit together"
        findings.append(Finding(machine.host, "clock", f"{skew:+.3f} s", mark, advice))
    return findings + [_link(pair) for pair in pairs]


def _link(pair: Pair) -> Finding:
    what = f"to {pair.other}"
    if pair.link is None:
        advice = "open the ports between them, or name another interface"
        return Finding(pair.one, what, "cannot be reached", Severity.FAULT, advice)
    milliseconds, megabytes = pair.link.latency_s * 1000, pair.link.bytes_per_s / 1e6
    found = f"{milliseconds:.2f} ms, {megabytes:.0f} MB/s"
    if pair.link.latency_s > 0.01:
        advice = "a slow link: share rarely (--set strategy.every), no allreduce"
        return Finding(pair.one, what, found, Severity.ADVICE, advice)
    return Finding(pair.one, what, found)


def measure_here(host: str) -> Pair:
    """The link between two processes of this machine."""
    with tempfile.TemporaryDirectory(prefix="unisono-") as folder:
        hosts = [Host(Path(folder)), Host(Path(folder))]
        here, there = (h.node(Address("doctor", n)) for n, h in enumerate(hosts))
        here.meet(Member(there.address, there.endpoint))
        there.meet(Member(here.address, here.endpoint))
        there.spawn("echo", lambda: echo(there))
        try:
            return Pair(host, "itself", probe(here, there.address))
        finally:
            for each in hosts:
                each.close()


def examine_here() -> list[Finding]:
    """This machine alone."""
    machine = survey()
    listens = Finding(machine.host, "listens on", "nothing: learners of one machine need no port")
    pairs = [measure_here(machine.host)]
    return [*judge(machine), listens, *judge_company([machine], [0.0], pairs)]
