"""Messages of a simulated cluster: through shared memory on a host, over its link between hosts."""

from __future__ import annotations

from dataclasses import dataclass

from unisono.fabric import Address
from unisono.simulation.hosts import Hosts

SHORT = 4096
"""Bytes: requests to the coordinator and its replies are shorter, vectors of a model longer."""


@dataclass
class _Way:
    """One direction of a link: messages on it wait for each other."""

    bandwidth: float
    """Bytes a second."""
    free: float = 0.0
    """When the last message has passed."""
    nbytes: int = 0
    """That have passed."""


@dataclass(frozen=True)
class LinkUse:
    """What has passed over a link.

    Attributes:
        name: of the host, or of the rack.
        sent: bytes.
        received: bytes.
        busy_s: seconds of the direction that was used more.
    """

    name: str
    sent: int
    received: int
    busy_s: float


class HostNetwork:
    """What messages cost, with queues where they share a way; asked in the order of time.

    Inside a host a sender copies one message after the other,

        sent = max(now, the last one sent) + bytes / bandwidth,    arrival = sent + latency.

    Between hosts a message passes the sender's link, the uplinks of both racks if these are
    different ones, and the receiver's link; on each the messages of one direction follow each
    other. It begins on the first when that is free, and on each other one not before it has begun
    on the one before and the messages in front have passed,

        begin = max(begin before, the last one passed),
        passed = max(passed before, begin + bytes / bandwidth),

    and it arrives, once it has passed the last one, after the latencies of all. Connections share a
    link packet by packet, so that messages of up to ``SHORT`` bytes do not wait for long ones, nor
    long ones for them. The coordinator is on the first host. Wherever the receiver is, sending
    takes the sender's core for as long as copying.
    """

    def __init__(self, hosts: Hosts) -> None:
        assert hosts.shared_memory is not None, "costs are filled in before a run"
        self._memory = hosts.shared_memory
        links = {host.name: hosts.link(host) for host in hosts.host}
        self._latencies = [links[host.name].latency for host in hosts.host]
        self._bandwidths = [links[host.name].bandwidth for host in hosts.host]
        self._racks = [host.rack for host in hosts.host]
        self._uplinks = {rack.name: rack.latency for rack in hosts.rack}
        links |= {rack.name: rack for rack in hosts.rack}
        self._out = {name: _Way(link.bandwidth) for name, link in links.items()}
        self._in = {name: _Way(link.bandwidth) for name, link in links.items()}
        self._host_out = [self._out[host.name] for host in hosts.host]
        self._host_in = [self._in[host.name] for host in hosts.host]
        self._places = [place for place, h in enumerate(hosts.host) for _ in range(h.learners)]
        self._copied: dict[Address, float] = {}

    def delay(self, sender: Address, receiver: Address, nbytes: int, now: float) -> float:
        """Seconds on the way of a message that is sent now."""
        here, there = self._place(sender), self._place(receiver)
        if here == there:
            begin = max(now, self._copied.get(sender, 0.0))
            sent = self._copied[sender] = begin + nbytes / self._memory.bandwidth
            return sent - now + self._memory.latency
        near, far = self._racks[here], self._racks[there]
        latency = self._latencies[here] + self._latencies[there]
        if near != far:
            latency += self._uplinks.get(near, 0.0) + self._uplinks.get(far, 0.0)
        if nbytes <= SHORT:
            return latency + nbytes / min(self._bandwidths[here], self._bandwidths[there])
        begin = passed = now
        for way in self._path(here, there):
            begin = max(begin, way.free)
            passed = way.free = max(passed, begin + nbytes / way.bandwidth)
            way.nbytes += nbytes
        return passed - now + latency

    def sending(self, nbytes: int) -> float:
        """Seconds of the sender's own core."""
        return nbytes / self._memory.bandwidth

    def links(self) -> list[LinkUse]:
        """What vectors and other long messages have used so far, hosts first."""
        return [
            LinkUse(
                name,
                out.nbytes,
                self._in[name].nbytes,
                max(out.nbytes, self._in[name].nbytes) / out.bandwidth,
            )
            for name, out in self._out.items()
        ]

    def _path(self, here: int, there: int) -> list[_Way]:
        """The ways from host to host."""
        first, last = self._host_out[here], self._host_in[there]
        near, far = self._racks[here], self._racks[there]
        if near == far:
            return [first, last]
        uplinks = [self._out[near]] if near else []
        uplinks += [self._in[far]] if far else []
        return [first, *uplinks, last]

    def _place(self, address: Address) -> int:
        if address[0] != "learner":
            return 0
        number = address[1]
        return self._places[number if number < len(self._places) else -1]
