"""Messages of a simulated cluster: through shared memory on a host, over its link between hosts."""

from __future__ import annotations

from unisono.fabric import Address
from unisono.simulation.hosts import Hosts

SHORT = 4096
"""Bytes: requests to the coordinator and its replies are shorter, vectors of a model longer."""


class HostNetwork:
    """What messages cost, with queues where they share a way; asked in the order of time.

    Inside a host a sender copies one message after the other,

        sent = max(now, the last one sent) + bytes / bandwidth,    arrival = sent + latency.

    Between hosts the messages of a host go out one after the other on its link, and come in one
    after the other at the receiver's: of a message that begins to leave at ``begin``,

        out = begin + bytes / bandwidth of the sender's link,
        in  = max(out, max(begin, the last one in) + bytes / bandwidth of the receiver's link),

    and it arrives at ``in`` plus both latencies. Connections share a link packet by packet, so that
    messages of up to ``SHORT`` bytes do not wait for long ones, nor long ones for them. The
    coordinator is on the first host. Wherever the
    receiver is, sending takes the sender's core for as long as copying.
    """

    def __init__(self, hosts: Hosts) -> None:
        assert hosts.shared_memory is not None, "costs are filled in before a run"
        self._memory = hosts.shared_memory
        self._links = [hosts.link(host) for host in hosts.host]
        self._places = [place for place, h in enumerate(hosts.host) for _ in range(h.learners)]
        self._copied: dict[Address, float] = {}
        self._out = [0.0] * len(self._links)
        self._in = [0.0] * len(self._links)

    def delay(self, sender: Address, receiver: Address, nbytes: int, now: float) -> float:
        """Seconds on the way of a message that is sent now."""
        here, there = self._place(sender), self._place(receiver)
        if here == there:
            begin = max(now, self._copied.get(sender, 0.0))
            sent = self._copied[sender] = begin + nbytes / self._memory.bandwidth
            return sent - now + self._memory.latency
        latency = self._links[here].latency + self._links[there].latency
        if nbytes <= SHORT:
            narrow = min(self._links[here].bandwidth, self._links[there].bandwidth)
            return latency + nbytes / narrow
        begin = max(now, self._out[here])
        out = self._out[here] = begin + nbytes / self._links[here].bandwidth
        first = max(begin, self._in[there])
        arrived = self._in[there] = max(out, first + nbytes / self._links[there].bandwidth)
        return arrived - now + latency

    def sending(self, nbytes: int) -> float:
        """Seconds of the sender's own core."""
        return nbytes / self._memory.bandwidth

    def _place(self, address: Address) -> int:
        if address.role != "learner":
            return 0
        return self._places[min(address.number, len(self._places) - 1)]
