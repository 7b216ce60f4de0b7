"""What a vector's way from process to process costs: ours, and what others offer, in one run.

Run as ``python benchmarks/transport.py``: two processes on this machine, every way open at the same
time, sizes and ways in turn, medians. ``--ray`` adds Ray's object store (right after the others: it
brings processes of its own), ``--json FILE`` writes the figures. pyzmq and Ray are measured where
they are installed; Unisono needs neither.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import socket
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist

from unisono.fabric import Member, TensorVector, learner
from unisono.fabric.local.host import Host
from unisono.fabric.network.auth import make_credentials
from unisono.fabric.network.tcp_listener import NetworkSettings

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from support.processes import distributed_test

SIZES = {"1 KB": (1_000, 40, 200), "1 MB": (1_000_000, 10, 30), "50 MB": (50_000_000, 1, 3)}
"""Bytes of the vector, round trips in a turn, messages of a stream."""
TURNS = 11
Figures = dict[str, dict[str, list[float]]]


class Contender(Protocol):
    """One end of a connection between the two processes."""

    def send(self, tensor: torch.Tensor) -> None:
        """Sends; returns when the tensor may be changed."""
        ...

    def receive(self, tensor: torch.Tensor) -> None:
        """Receives one of the same size."""
        ...


def meet(folder: Path, name: str, rank: int, mine: str = "") -> str:
    """Tells the other process something, and waits for what it tells."""
    draft = folder / f"{name}.{rank}.draft"
    draft.write_text(mine)
    draft.rename(folder / f"{name}.{rank}")
    other = folder / f"{name}.{1 - rank}"
    while not other.exists():
        time.sleep(0.01)
    return other.read_text()


class Ours:
    """The fabric: over shared memory or TCP. The receiver reads where the message lies."""

    def __init__(self, rank: int, folder: Path, name: str, host: Host) -> None:
        self._host = host
        self._node = host.node(learner(rank))
        self._to = learner(1 - rank)
        self._node.meet(Member(self._to, meet(folder, name, rank, host.endpoint)))

    def send(self, tensor: torch.Tensor) -> None:
        """As strategies do."""
        self._node.send(self._to, "x", {}, TensorVector(tensor))

    def receive(self, tensor: torch.Tensor) -> None:
        """As strategies do."""
        self._node.receive("x").release()


class Bare:
    """A plain blocking socket, straight from and to the tensor's memory."""

    def __init__(self, rank: int, folder: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = int(meet(folder, "bare", rank, str(listener.getsockname()[1])))
            if rank == 0:
                self._sock = socket.create_connection(("127.0.0.1", port))
            else:
                self._sock, _ = listener.accept()
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, tensor: torch.Tensor) -> None:
        """The kernel has a copy."""
        self._sock.sendall(tensor.numpy().data)

    def receive(self, tensor: torch.Tensor) -> None:
        """Into place."""
        view = memoryview(tensor.numpy().data).cast("B")
        while len(view):
            view = view[self._sock.recv_into(view) :]


class Zmq:
    """pyzmq, a pair of sockets, one frame a message, copied into place at the end."""

    def __init__(self, rank: int, folder: Path, name: str, *, curve: bool) -> None:
        zmq: Any = importlib.import_module("zmq")
        self._zmq = zmq
        self._context = zmq.Context()
        self._sock = self._context.socket(zmq.PAIR)
        if curve:
            public, secret = zmq.curve_keypair()
            other = meet(folder, f"{name}-key", rank, public.decode()).encode()
            self._sock.curve_publickey, self._sock.curve_secretkey = public, secret
            if rank == 1:
                self._sock.curve_server = True
            else:
                self._sock.curve_serverkey = other
        port = self._sock.bind_to_random_port("tcp://127.0.0.1") if rank == 1 else 0
        told = meet(folder, name, rank, str(port))
        if rank == 0:
            self._sock.connect(f"tcp://127.0.0.1:{told}")

    def send(self, tensor: torch.Tensor) -> None:
        """A copy first: a frame that is not copied must not change until it is away."""
        self._sock.send(tensor.numpy().tobytes(), copy=False)

    def receive(self, tensor: torch.Tensor) -> None:
        """Into place."""
        frame = self._sock.recv(copy=False)
        tensor.copy_(torch.frombuffer(frame.buffer, dtype=tensor.dtype))


class Gloo:
    """torch.distributed, point to point."""

    def __init__(self, rank: int, folder: Path) -> None:
        dist.init_process_group("gloo", f"file://{folder}/gloo", rank=rank, world_size=2)
        self._other = 1 - rank

    def send(self, tensor: torch.Tensor) -> None:
        """Returns when the tensor may be changed."""
        dist.send(tensor, self._other)

    def receive(self, tensor: torch.Tensor) -> None:
        """Into place."""
        dist.recv(tensor, self._other)


def ways_of(rank: int, folder: Path) -> dict[str, Contender]:
    """All that can be had here."""
    mine = make_credentials()
    theirs = meet(folder, "credentials", rank, mine)
    network = NetworkSettings(mine if rank == 0 else theirs, "127.0.0.1")
    makers: dict[str, Callable[[str], Contender]] = {
        "shared memory": lambda name: Ours(rank, folder, name, Host(folder, f"{rank}.sock")),
        "tcp": lambda name: Ours(rank, folder, name, Host(network=network)),
        "bare socket": lambda name: Bare(rank, folder),
        "gloo": lambda name: Gloo(rank, folder),
    }
    if importlib.util.find_spec("zmq") is not None:
        makers["pyzmq"] = partial(Zmq, rank, folder, curve=False)
        makers["pyzmq, curve"] = partial(Zmq, rank, folder, curve=True)
    return {name: make(name.replace(",", "").replace(" ", "-")) for name, make in makers.items()}


def measure(rank: int, folder: Path) -> Figures:
    """One of two processes: seconds a round trip, and a message of a stream, by way and size."""
    torch.set_num_threads(1)
    contenders = ways_of(rank, folder)
    figures: Figures = {name: {} for name in contenders}
    short = torch.zeros(1)
    for turn in range(TURNS + 1):
        for size, (nbytes, trips, stream) in SIZES.items():
            tensor = torch.ones(nbytes // 4)
            for name, way in contenders.items():
                trip, one = _turn(rank, way, tensor, short, trips, stream)
                if turn:
                    figures[name].setdefault(f"{size} trip", []).append(trip)
                    figures[name].setdefault(f"{size} stream", []).append(one)
    meet(folder, "done", rank)
    return figures


def _turn(
    rank: int, way: Contender, tensor: torch.Tensor, short: torch.Tensor, trips: int, stream: int
) -> tuple[float, float]:
    began = time.perf_counter()
    for _ in range(trips):
        if rank == 0:
            way.send(tensor)
            way.receive(tensor)
        else:
            way.receive(tensor)
            way.send(tensor)
    between = time.perf_counter()
    if rank == 0:
        for _ in range(stream):
            way.send(tensor)
        way.receive(short)
    else:
        for _ in range(stream):
            way.receive(tensor)
        way.send(short)
    return (between - began) / trips, (time.perf_counter() - between) / stream


def measure_ray() -> Figures:
    """A message to an actor of another process and back, through the object store."""
    import ray

    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)

    @ray.remote
    class Echo:
        def echo(self, array: Any) -> Any:
            return array.copy()

    actor = Echo.remote()  # type: ignore[attr-defined]
    figures: dict[str, list[float]] = {}
    for turn in range(TURNS + 1):
        for size, (nbytes, trips, _) in SIZES.items():
            array = torch.ones(nbytes // 4).numpy()
            began = time.perf_counter()
            for _ in range(trips):
                ray.get(actor.echo.remote(array))
            if turn:
                each = (time.perf_counter() - began) / trips
                figures.setdefault(f"{size} trip", []).append(each)
    ray.shutdown()
    return {"ray": figures}


def table(figures: Figures) -> list[str]:
    """Lines for a person."""
    trips = "".join(f"{size:>10}" for size in SIZES)
    lines = [f"{'':<18}{'round trip, ms':^{len(trips)}}   {'one way, MB/s':^{len(trips)}}"]
    lines += [f"{'':<18}{trips}   {trips}"]
    for name, found in figures.items():
        row = f"{name:<18}"
        for size in SIZES:
            row += f"{1e3 * statistics.median(found[f'{size} trip']):10.3f}"
        row += "   "
        for size, (nbytes, _, _) in SIZES.items():
            times = found.get(f"{size} stream")
            row += f"{nbytes / 1e6 / statistics.median(times):10.0f}" if times else f"{'-':>10}"
        lines.append(row)
    return lines


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--ray", action="store_true", help="Ray's object store as well")
    parser.add_argument("--json", type=Path, help="where to write the figures")
    options = parser.parse_args()
    figures: Figures = distributed_test(measure, 2, limit=1200.0)[0]
    load = os.getloadavg()[0]
    print(f"two processes, {os.cpu_count()} cores, load {load:.1f}, Python ", end="")
    print(f"{platform.python_version()}, torch {torch.__version__}; medians of {TURNS} turns")
    for line in table(figures):
        print(line, flush=True)
    if options.ray:
        figures |= measure_ray()
        print(table(figures)[-1])
    if options.json:
        options.json.write_text(json.dumps(figures))


if __name__ == "__main__":
    main()
