"""Four hosts with slow cables: what they train a second, and how well, at each pace of rounds.

    sudo python benchmarks/hosts.py FRAMES.npz --out DIR [--turns 3] [--seconds 6] [--parts ...]

The hosts are network namespaces of this machine, each with a cable to one switch; a learner of one
thread is on each, and the coordinator on the first. Parts, all of them unless told otherwise:

    fast       cables of 100 Mbit/s both ways
    slow       cables of 50 Mbit/s
    far        100 Mbit/s, and 20 ms from a host to another and back (``support.switch``)
    bits       50 Mbit/s, averaging every 8192 in float32, bfloat16, int8 and int4
    training   whole trainings, for the log-prob

In each turn every way is timed once. Before and after it are four bare loops that share nothing,
and its ratio is to their mean; the median over the turns is printed, with the least and the
greatest. ``solo`` is four learners that share nothing: what a learner costs beside a bare loop. A
window holds whole rounds. ``limit`` is what the cables alone allow: with c the seconds that the
loops need for the examples of a round, and f those that its bytes need on one cable, c / (c + f)
for ways that wait for a round, min(1, c / f) for those that compute meanwhile (and, where that is
less than 1, may let rounds become longer instead).

Trainings of ways that are sharded statically come to the same whatever the cables, so they run
without namespaces; the others run on the hosts, at 100 Mbit/s. What is done is kept in DIR and not
done again; DIR/hosts.html has the curves.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, cast

from hosts_contenders import (
    CONTENDERS,
    HOSTS,
    MEGABITS,
    MINIBATCH,
    TIMEOUT_S,
    TRAINED,
    Order,
    Speed,
    Timing,
)
from hosts_tables import curves, speed_table, training_table

from unisono.config import load
from unisono.data import Prep, convert_frames
from unisono.fabric.network.auth import make_credentials
from unisono.launch.coordinator_main import OUTCOME
from unisono.learner.placement import CREDENTIALS, ENDPOINT
from unisono.models import build
from unisono.runs.directory import RunDirectory
from unisono.runs.summary import Summary
from unisono.training.builders import shape_of
from unisono.training.train import summarise, train

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from support.hosts import Hosts

MODEL = [f"minibatch={MINIBATCH}", "network.hidden=[384,384,384]", "threads=1", "device=cpu"]
OPTIMIZER = "optimizer=sgd"
"""Of all that is timed: the default for one learner is another than that for several."""
RATES = ["rate.schedule=warmup", "rate.start=0.025"]
"""Of the trainings of four learners, as in results/an4-4-learners.txt; solo has the defaults."""
FAR_S = 0.01
GRACE_S = 30.0


class Cluster:
    """Four hosts with a process on each that obeys, and coordinators on the first."""

    def __init__(self, hosts: Hosts, folder: Path, prep: Path) -> None:
        self._hosts = hosts
        self._folder = folder
        self._count = 0
        self._log = (folder / "hosts.log").open("a+")
        self._processes: list[subprocess.Popen[bytes]] = []
        self._links = [self._start(number, prep) for number in range(HOSTS)]

    def _start(self, number: int, prep: Path) -> Connection:
        """What it is told and says goes through this machine, not over the cables."""
        ours, theirs = Pipe()
        script = str(Path(__file__).parent / "hosts_learner.py")
        command = [*self._hosts.inside(number), sys.executable, script]
        command += [str(theirs.fileno()), str(number), str(prep)]
        self._processes.append(
            subprocess.Popen(
                command,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                pass_fds=[theirs.fileno()],
                stdout=self._log,
                stderr=self._log,
            )
        )
        theirs.close()
        return ours

    def time(self, sets: list[str], seconds: float, *, shared: bool = True) -> list[Speed]:
        """What each host does in a window."""
        with self._coordinated(None) if shared else _nothing() as order:
            self._tell(Order(*order, (*sets, OPTIMIZER), seconds))
            self._hear()
            self._tell("begin")
            speeds = self._hear()
            self._tell("end")
        return cast("list[Speed]", speeds)

    def alone(self, seconds: float) -> float:
        """Steps a second of four that share nothing."""
        return sum(speed.steps for speed in self.time(MODEL, seconds / 2, shared=False))

    def train(self, run: RunDirectory) -> dict[str, Any]:
        """A whole training; what its coordinator knows at the end."""
        with self._coordinated(run) as order:
            self._tell(Order(*order, run=str(run.path)))
            self._hear()
        outcome: dict[str, Any] = json.loads((self._last / OUTCOME).read_text())
        return outcome

    def close(self) -> None:
        """Sends them home."""
        for link in self._links:
            with suppress(OSError):
                link.send(None)
        for process in self._processes:
            try:
                process.wait(GRACE_S)
            except subprocess.TimeoutExpired:
                process.kill()

    @contextmanager
    def _coordinated(self, run: RunDirectory | None) -> Iterator[tuple[str, str]]:
        """A coordinator on the first host; it ends when all have left."""
        self._count += 1
        self._last = self._folder / f"coordinator-{self._count}"
        self._last.mkdir()
        credentials = make_credentials()
        command = [*self._hosts.inside(0), sys.executable, "-m", "unisono.launch.coordinator_main"]
        command += [str(self._last), "--learners", str(HOSTS), "--timeout", str(TIMEOUT_S)]
        command += ["--address", self._hosts.address(0)]
        command += [] if run is None else ["--metrics", str(run.metrics)]
        environment = {**os.environ, CREDENTIALS: credentials, "OMP_NUM_THREADS": "1"}
        coordinator = subprocess.Popen(command, env=environment)
        noted = self._last / ENDPOINT
        try:
            while not noted.is_file():
                if coordinator.poll() is not None:
                    sys.exit("the coordinator did not start")
                time.sleep(0.01)
            yield noted.read_text().split()[0], credentials
            coordinator.wait(GRACE_S)
        finally:
            coordinator.kill()
            coordinator.wait()

    def _tell(self, what: object) -> None:
        for link in self._links:
            link.send(what)

    def _hear(self) -> list[object]:
        try:
            return [link.recv() for link in self._links]
        except EOFError:
            self._log.seek(0)
            sys.exit(f"a process has ended:\n{self._log.read()}")


@contextmanager
def _nothing() -> Iterator[tuple[str, str]]:
    yield "", ""


@contextmanager
def cluster(part: str, prep: Path) -> Iterator[Cluster]:
    """Hosts with the cables of a part."""
    hosts = Hosts(HOSTS, FAR_S if part == "far" else 0.0)
    with tempfile.TemporaryDirectory(prefix="unisono-") as folder:
        try:
            hosts.build()
            if not hosts.slow_down(MEGABITS[part]):
                sys.exit("this kernel has no tbf to slow links down")
            made = Cluster(hosts, Path(folder), prep)
            try:
                yield made
            finally:
                made.close()
        finally:
            hosts.remove()


class Kept:
    """Results in a file, one a line."""

    def __init__(self, out: Path) -> None:
        self._path = out / "results.jsonl"
        lines = self._path.read_text().splitlines() if self._path.exists() else []
        found: list[dict[str, Any]] = [json.loads(line) for line in lines]
        self.trainings = {each["way"]: each for each in found if each["part"] == "training"}
        self.timings: dict[str, list[Timing]] = {part: [] for part in CONTENDERS}
        for each in found:
            if (part := each.pop("part")) in CONTENDERS:
                self.timings[part].append(Timing(**each))

    def add_timing(self, part: str, timing: Timing) -> None:
        """Of a way in a turn."""
        self.timings[part].append(timing)
        self._add({"part": part, **asdict(timing)})

    def add_training(self, way: str, summary: Summary) -> None:
        """Of a whole training."""
        result = {
            "way": way,
            "logprob": summary.validation_logprob,
            "rounds": summary.rounds,
            "wall_s": summary.wall_s,
        }
        self.trainings[way] = result
        self._add({"part": "training", **result})

    def ratios(self) -> dict[str, float]:
        """At 100 Mbit/s, by way."""
        ratios: dict[str, list[float]] = {}
        for timing in self.timings["fast"]:
            ratios.setdefault(timing.way, []).append(timing.ratio)
        return {way: statistics.median(each) for way, each in ratios.items()}

    def _add(self, result: dict[str, Any]) -> None:
        line = json.dumps(result)
        print(line, file=sys.stderr, flush=True)
        with self._path.open("a") as file:
            file.write(line + "\n")


def time_part(part: str, prep: Path, turns: int, seconds: float, kept: Kept) -> None:
    """Times what is not timed yet."""
    done = {(timing.turn, timing.way) for timing in kept.timings[part]}
    todo = [(turn, way) for turn in range(turns) for way in CONTENDERS[part]]
    todo = [(turn, way) for turn, way in todo if (turn, way.key) not in done]
    if not todo:
        return
    with cluster(part, prep) as hosts:
        before = hosts.alone(seconds)
        for turn, way in todo:
            speeds = hosts.time([*MODEL, *way.sets], seconds, shared=way.shares)
            after = hosts.alone(seconds)
            steps = sum(s.steps for s in speeds)
            rounds = statistics.mean(s.rounds for s in speeds)
            sent = statistics.mean(s.bytes for s in speeds)
            ratio = 2 * steps / (before + after)
            kept.add_timing(part, Timing(way.key, turn, ratio, steps, rounds, sent))
            before = after


def train_all(prep: Path, epochs: int, kept: Kept) -> None:
    """Trains what is not trained yet."""
    common = [*MODEL, f"epochs={epochs}", "validation.examples=0"]
    flags = {"prep": str(prep)}
    todo = {way.key: way for way in TRAINED if way.key not in kept.trainings}
    alone = {"solo": ["strategy.name=solo", "learners=1"]} if "solo" not in kept.trainings else {}
    alone |= {key: [*RATES, *way.sets] for key, way in todo.items() if way.static}
    with tempfile.TemporaryDirectory(prefix="unisono-") as folder:
        for key, sets in alone.items():
            config = load(None, [*common, *sets], flags)
            kept.add_training(key, train(config, Path(folder) / key))
        if all(way.static for way in todo.values()):
            return
        with cluster("fast", prep) as hosts:
            for key, way in todo.items():
                if not way.static:
                    config = load(None, [*common, *RATES, *way.sets], flags)
                    run = RunDirectory.create(Path(folder) / key, config)
                    outcome = hosts.train(run)
                    kept.add_training(key, summarise(run, config, outcome))


def parameters(prep: Path) -> int:
    """Of the model."""
    config = load(None, MODEL, {"prep": str(prep)})
    model = build(config.model, seed=0, **shape_of(config, Prep.open(prep)))
    return sum(p.numel() for p in model.parameters())


def main() -> None:
    """Measures what is not measured yet, and prints the tables."""
    parser = argparse.ArgumentParser()
    parser.add_argument("frames", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=6.0, help="a window, at least")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--parts", default="fast,slow,far,bits,training")
    options = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("network namespaces need root")
    options.out.mkdir(parents=True, exist_ok=True)
    kept = Kept(options.out)
    with tempfile.TemporaryDirectory(prefix="unisono-") as folder:
        prep = Path(folder) / "prep"
        convert_frames(options.frames, prep)
        for part in options.parts.split(","):
            if part == "training":
                train_all(prep, options.epochs, kept)
            else:
                time_part(part, prep, options.turns, options.seconds, kept)
        size = parameters(prep)
    print(f"4 hosts, a learner of one thread on each; a model of {size} parameters")
    for part, timings in kept.timings.items():
        if timings:
            print("\n" + "\n".join(speed_table(part, timings, size)))
    if "solo" in kept.trainings:
        print("\n" + "\n".join(training_table(kept.trainings, kept.ratios())))
        (options.out / "hosts.html").write_text(curves(kept.trainings, kept.ratios()))


if __name__ == "__main__":
    main()
