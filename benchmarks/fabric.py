"""What a message costs: round trips between two processes, and events of the simulated kernel.

Run as ``python benchmarks/fabric.py``. Beside the fabric stands its floor on the same machine in
the same run: a bare Unix socket for a body, mere copies into shared memory for a vector.
"""

from __future__ import annotations

import socket
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

from unisono.fabric import Member, TensorVector, View, learner
from unisono.fabric.local.host import Host
from unisono.fabric.local.shared_memory import Slot
from unisono.fabric.simulated.kernel import Kernel, SimulatedNetwork
from unisono.fabric.simulated.node import SimulatedNode

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from support.processes import distributed_test

SIZES = {"body": (0, 2000), "1 MB": (1_000_000, 300), "50 MB": (50_000_000, 20)}
"""Bytes of the vector, and how many round trips are timed."""
_WARM_UP = 5


def timed(count: int, action: Callable[[], object]) -> list[float]:
    """Seconds of each repetition, after a few that are not counted."""
    times = []
    for _ in range(count + _WARM_UP):
        began = time.perf_counter()
        action()
        times.append(time.perf_counter() - began)
    return times[_WARM_UP:]


def round_trips(rank: int, directory: Path) -> dict[str, list[float]]:
    """One of two processes: rank 0 asks, rank 1 answers with what it was sent."""
    host = Host(directory, f"{rank}.sock")
    node = host.node(learner(rank))
    while not all((directory / f"{r}.sock").exists() for r in range(2)):
        time.sleep(0.01)
    members = (Member(learner(r), f"unix:{directory}/{r}.sock") for r in range(2))
    node.set_members(View(1, tuple(members)))
    other = learner(1 - rank)
    times = {}
    for name, (nbytes, count) in SIZES.items():
        vector = TensorVector.zeros(nbytes // 4) if nbytes else None

        def ask(vector: TensorVector | None = vector) -> None:
            node.send(other, "x", {"n": 1}, vector)
            node.receive("x").release()

        def answer() -> None:
            message = node.receive("x")
            node.send(other, "x", message.body, message.vector)
            message.release()

        times[name] = timed(count, ask if rank == 0 else answer)
    node.sleep(0.2)
    host.close()
    return times


def bare_socket(rank: int, directory: Path) -> list[float]:
    """Round trips of a short packet over a Unix socket, and nothing else."""
    path = directory / "bare.sock"
    if rank == 1:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listener.bind(str(path))
        listener.listen()
        connection, _ = listener.accept()
    else:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        while connection.connect_ex(str(path)):
            time.sleep(0.01)

    def ask() -> None:
        connection.send(b"x" * 50)
        connection.recv(100)

    def answer() -> None:
        connection.send(connection.recv(100))

    times = timed(SIZES["body"][1], ask if rank == 0 else answer)
    connection.close()
    return times


def two_copies(nbytes: int, count: int) -> list[float]:
    """The copies of a round trip: into shared memory on the way there, and on the way back."""
    vector = TensorVector.zeros(nbytes // 4)
    there, back = Slot(1, nbytes), Slot(2, nbytes)

    def copy() -> None:
        there.fill(vector)
        back.fill(vector)

    return timed(count, copy)


def kernel_events(nodes: int, rounds: int) -> float:
    """Events a second: each node sends to its neighbour, receives, and sleeps."""
    kernel = Kernel(network=SimulatedNetwork(latency=0.001))
    ring = [SimulatedNode(kernel, learner(n)) for n in range(nodes)]

    def play(node: SimulatedNode) -> None:
        to = learner((node.address.number + 1) % nodes)
        for n in range(rounds):
            node.send(to, "x", {"n": n})
            node.receive("x")
            node.sleep(1.0)

    for node in ring:
        kernel.main(node, lambda node=node: play(node))  # type: ignore[misc]
    began = time.perf_counter()
    kernel.run()
    return 3 * nodes * rounds / (time.perf_counter() - began)


def row(name: str, times: list[float], floor: list[float]) -> str:
    """A line of the table, in milliseconds."""
    median, least = statistics.median(times), statistics.median(floor)
    late = statistics.quantiles(times, n=100)[-1]
    cells = f"{1e3 * median:9.3f} {1e3 * late:9.3f} {1e3 * least:9.3f}"
    return f"{name:<8} {cells} {median / least:8.1f}"


def main() -> None:
    """Prints the table."""
    torch.set_num_threads(1)
    times = distributed_test(round_trips, 2, limit=120.0)[0]
    floors = {"body": distributed_test(bare_socket, 2)[0]}
    floors |= {name: two_copies(*size) for name, size in SIZES.items() if size[0]}
    print("round trip between two processes, ms")
    print("            median       p99     floor    ratio")
    for name in SIZES:
        print(row(name, times[name], floors[name]))
    print("\nsimulated kernel, events a second (send, receive, sleep)")
    for nodes in (2, 100, 1000):
        print(f"{nodes:>5} nodes {kernel_events(nodes, 60_000 // nodes):12,.0f}")


if __name__ == "__main__":
    main()
