"""Time to accuracy: how much sooner several learners have the model of the best solo run.

    python benchmarks/time_to_accuracy.py PREP --out DIR [--learners 4,8,16] [--seeds 3]

Every run is `unisono train` with the shipped defaults, one thread a learner, on CPUs; with --device
cuda on one GPU, which all learners share. Solo is also tried with other optimizers and rates
(--solo, each with a multiple of its default rate): the best of these is what the others are
measured against. What is done stays done: stop it at any moment, and run it again with the same
--out. A run that was under way begins anew, since a run in two pieces has no time that means
anything.

Runs that fit side by side on --cores run at the same time, each on cores of its own, one a learner:
cores that share memory and clock are then as fast for solo as for many learners, as separate
machines would be. With --alone each run has the machine to itself, and solo gains what other cores
leave unused. --budget ends it after so many seconds; a run that would not be done by then, going by
those before it, is not begun.

The rows `ddp` are PyTorch's DistributedDataParallel (ddp_training.py). With --slow 5 learner 0 of
the runs marked "slow" is stopped four fifths of the time from the start of its training on, in
slices of 10 ms, as if its machine were five times slower. With --slow-limit these runs are stopped
after so many seconds, and their curves count as far as they go.

Writes DIR/table.txt, DIR/results.json and DIR/time_to_accuracy.svg whenever a run has ended.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from time_to_accuracy_tables import Finished, Row, judge_rows, picture, results, table

from unisono.config import DEFAULT_RATES, OptimizerChoice, load
from unisono.errors import Cause
from unisono.fabric.local.child_processes import ChildProcesses
from unisono.report.time_to_target import Ceiling, read_curve
from unisono.runs.directory import RunDirectory, write_atomically
from unisono.strategies.registry import names
from unisono.training.bench import measure_ceiling

SHIPPED = "sgd:1"
"""The optimizer of solo, and the multiple of its default rate: what `unisono train` takes."""
TRIALS = [f"{optimizer.value}:{rate:g}" for optimizer in DEFAULT_RATES for rate in (0.5, 1, 2, 4)]
SLOWED = (
    "averaging",
    "gossip-random",
    "gossip-fixed",
    "adpsgd",
    "server",
    "averaging:sharding=static",
    "allreduce",
    "ddp",
)
"""Rows of --slow: the strategies that wait for nobody, and beside them those that wait."""
DDP = Path(__file__).with_name("ddp_training.py")
SLICE_S = 0.01


@dataclass(frozen=True)
class Job:
    """One run: a row of the table, and a seed."""

    name: str
    learners: int
    seed: int
    arguments: tuple[str, ...] = ()
    slow: float = 1.0

    @property
    def key(self) -> str:
        """Its name among the files."""
        return f"{self.name.replace(' ', '_').replace(':', '+')}-{self.learners}-{self.seed}"

    @property
    def is_ddp(self) -> bool:
        """Whether it is not one of ours."""
        return self.name.startswith("ddp")

    def command(self, prep: Path, out: Path, device: str) -> list[str]:
        """What is run; ``out`` is a run directory, or the file with DDP's curve."""
        python = [sys.executable, "-m"]
        if self.is_ddp:
            agent = [
                "torch.distributed.run",
                "--standalone",
                "--nproc-per-node",
                str(self.learners),
            ]
            return [*python, *agent, str(DDP), str(prep), f"--out={out}", f"--seed={self.seed}"]
        words = ["unisono", "train", str(prep), "--out", str(out), "--learners", str(self.learners)]
        sets = ["--set", "threads=1", "--set", f"device={device}"]
        return [*python, *words, f"--seed={self.seed}", *sets, *self.arguments]


def solo_jobs(seed: int, trials: Sequence[str]) -> list[Job]:
    """Solo as it is shipped, then with other optimizers and rates."""
    jobs = [Job("solo", 1, seed)]
    for trial in trials:
        name, _, times = trial.partition(":")
        start = float(times) * DEFAULT_RATES[OptimizerChoice(name)]
        options = ("--optimizer", name, "--set", f"rate.start={start!r}")
        jobs.append(Job(f"solo {name} x{times}", 1, seed, options))
    return jobs


def strategy_job(variant: str, learners: int, seed: int, slow: float = 1.0) -> Job:
    """A strategy by its name, with options behind colons."""
    name, *options = variant.split(":")
    sets = [word for option in options for word in ("--set", f"strategy.{option}")]
    title = f"{variant} slow" if slow > 1 else variant
    return Job(title, learners, seed, ("--strategy", name, *sets), slow)


class Benchmark:
    """Runs what is not done yet, the most important first."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._prep: Path = options.prep.resolve()
        self._out: Path = options.out.resolve()
        self._learners = [int(word) for word in options.learners.split(",")]
        self._main = 8 if 8 in self._learners else self._learners[0]
        self._seeds = range(options.seeds)
        self._strategies: list[str] = options.strategies.split(",") if options.strategies else []
        self._slow: float = options.slow
        self._trials = [word for word in options.solo.split(",") if word]
        self._cores: int = options.cores or os.cpu_count() or 1
        self._alone: bool = options.alone
        self._device: str = options.device
        self._deadline = time.monotonic() + options.budget if options.budget else None
        self._slow_limit: float = options.slow_limit or math.inf
        self._stops: dict[str, float] = {}
        self._places: dict[str, Sequence[int]] = {}
        self._given_up: set[str] = set()
        for folder in ("runs", "logs"):
            (self._out / folder).mkdir(parents=True, exist_ok=True)

    def run(self) -> None:
        """Everything; writes the table after each run."""
        for learners in self._learners:
            self._ceiling(learners)
        for each in list(dict.fromkeys(self.plan())):
            summary = self._out / "runs" / each.key / "summary.json"
            if self._read(each) is None and summary.exists():
                self._note(each, "it ended when this program was stopped")
        children = ChildProcesses()
        under_way: dict[str, Job] = {}
        try:
            while True:
                while (job := self._next(list(under_way.values()))) is not None:
                    taken = {core for each in under_way for core in self._places[each]}
                    free = [core for core in range(self._cores) if core not in taken]
                    self._start(children, job, free[: job.learners])
                    under_way[job.key] = job
                if not under_way:
                    break
                ended = children.wait(self._patience(under_way))
                if self._deadline is not None and time.monotonic() >= self._deadline:
                    print("the time is up; the same command goes on from here", flush=True)
                    break
                for child in ended:
                    self._note(under_way.pop(child.name), child.how)
                for key in under_way:
                    if time.monotonic() >= self._stops.get(key, math.inf):
                        os.kill(children.pid(key), signal.SIGTERM)
                        self._stops[key] = math.inf
        finally:
            children.stop(5.0)
            self.write()

    def plan(self) -> Iterator[Job]:
        """All jobs, the most important first."""
        first, others = self._seeds[0], self._seeds[1:]
        yield Job("default", self._main, first)
        yield from solo_jobs(first, self._trials)
        best = self._best_solo()
        for seed in others:
            yield Job("default", self._main, seed)
            yield Job("solo", 1, seed)
            yield from (job for job in solo_jobs(seed, self._trials) if job.name == best)
        for seed in self._seeds:
            for learners in self._learners:
                yield Job("default", learners, seed)
        for seed in self._seeds:
            for variant in self._strategies:
                yield strategy_job(variant, self._main, seed)
        if self._slow > 1:
            for seed in self._seeds:
                for variant in SLOWED:
                    yield strategy_job(variant, self._main, seed, self._slow)

    def write(self) -> None:
        """Table, figures and picture of what is done so far."""
        done = [found for job in dict.fromkeys(self.plan()) if (found := self._read(job))]
        ceilings = {n: each for n in self._learners if (each := self._read_ceiling(n))}
        rows = judge_rows(done, self._best_solo())
        lines = table(rows, ceilings)
        write_atomically(self._out / "table.txt", ("\n".join(lines) + "\n").encode())
        whole = results(rows, ceilings, [asdict(each) for each in done])
        write_atomically(self._out / "results.json", json.dumps(whole, indent=1).encode())
        drawn: list[Row] = [r for r in rows if r.learners in (1, self._main)]
        image = picture(drawn)
        if image:
            write_atomically(self._out / "time_to_accuracy.svg", image.encode())
        print("\n".join(["", *lines]), flush=True)

    def _next(self, under_way: Sequence[Job]) -> Job | None:
        """The first job that is not done and fits."""
        if self._alone and under_way:
            return None
        free = self._cores - sum(min(job.learners, self._cores) for job in under_way)
        waiting = [
            job
            for job in dict.fromkeys(self.plan())
            if job not in under_way
            and job.key not in self._given_up
            and self._read(job) is None
            and self._has_time(job)
        ]
        return next((job for job in waiting if min(job.learners, self._cores) <= free), None)

    def _patience(self, under_way: Iterable[str]) -> float | None:
        """Seconds to the next limit of a run, or of this program."""
        limits = [self._stops.get(key, math.inf) for key in under_way]
        soonest = min([*limits, math.inf if self._deadline is None else self._deadline])
        return None if soonest == math.inf else max(0.0, soonest - time.monotonic())

    def _has_time(self, job: Job) -> bool:
        if self._deadline is None:
            return True
        took = [
            found.total_s
            for file in (self._out / "runs").glob(f"*-{job.learners}-*.json")
            if (found := Finished.read(file)) is not None
        ]
        return bool(time.monotonic() + max(took, default=0.0) < self._deadline)

    def _start(self, children: ChildProcesses, job: Job, cores: Sequence[int]) -> None:
        path = self._out / "runs" / job.key
        shutil.rmtree(path, ignore_errors=True)
        self._curve_of_ddp(job).unlink(missing_ok=True)
        log = self._out / "logs" / f"{job.key}.txt"
        log.unlink(missing_ok=True)
        pinned = ["taskset", "--cpu-list", ",".join(map(str, cores))]
        file = self._curve_of_ddp(job) if job.is_ddp else path
        command = job.command(self._prep, file, self._device)
        children.start(job.key, [*pinned, *command], {"OMP_NUM_THREADS": "1"}, log)
        self._places[job.key] = cores
        print(f"begun   {job.name}, {job.learners} learners, seed {job.seed}", flush=True)
        if job.slow > 1:
            self._stops[job.key] = time.monotonic() + self._slow_limit
            threading.Thread(
                target=slow_down,
                args=(children.pid(job.key), job.slow, lambda: self._trains(job)),
                daemon=True,
            ).start()

    def _trains(self, job: Job) -> bool:
        """Whether learner 0 has begun."""
        if job.is_ddp:
            return self._curve_of_ddp(job).exists()
        run = RunDirectory(self._out / "runs" / job.key)
        events = run.read_metrics() if run.metrics.is_file() else []
        return any(event["event"] == "joined" and event["learner"] == 0 for event in events)

    def _note(self, job: Job, how: str) -> None:
        """What came of a run, in a file of its own: that is what makes it done."""
        path = self._out / "runs" / job.key
        run = RunDirectory(path)
        summary = run.read_summary() if path.is_dir() else None
        finished = Finished(job.name, job.learners, job.seed, machine=machine(self._device))
        finished.stopped = job.slow > 1 and self._stops.get(job.key) == math.inf > self._slow_limit
        if job.is_ddp and self._curve_of_ddp(job).exists():
            finished = replace(finished, **json.loads(self._curve_of_ddp(job).read_text()))
        elif finished.stopped or (summary is not None and summary.ended == "finished"):
            curve = read_curve(path, job.seed, "logprob")
            finished.points = [list(point) for point in curve.points]
            finished.start_up_s = curve.start_up_s
            finished.stalled_s = curve.stalled_s
            finished.wall_s = summary.wall_s if summary else max(t for t, _ in finished.points)
            finished.examples_per_s = summary.examples_per_s if summary else 0.0
            finished.accuracy = summary.validation_accuracy if summary else None
            shutil.rmtree(run.checkpoints, ignore_errors=True)
        elif diverged(run):
            finished.diverged = True
        else:
            self._given_up.add(job.key)
            log = self._out / "logs" / f"{job.key}.txt"
            print(f"FAILED  {job.name}, seed {job.seed} ({how}): see {log}", flush=True)
            return
        finished.write(self._out / "runs" / f"{job.key}.json")
        told = "diverged" if finished.diverged else f"log-prob {finished.curve.final:.4f}"
        seconds = f"{finished.wall_s:.1f} s"
        print(f"done    {job.name}, seed {job.seed}: {told}, {seconds}", flush=True)
        self.write()

    def _curve_of_ddp(self, job: Job) -> Path:
        return self._out / "runs" / f"{job.key}.curve"

    def _read(self, job: Job) -> Finished | None:
        return Finished.read(self._out / "runs" / f"{job.key}.json")

    def _best_solo(self) -> str:
        """The solo run that ended best, with the first seed, of those that are done."""
        jobs = solo_jobs(self._seeds[0], self._trials)
        done = [found for job in jobs if (found := self._read(job))]
        ended = [each for each in done if not each.diverged]
        return max(ended, key=lambda each: each.curve.final).name if ended else "solo"

    def _ceiling(self, learners: int) -> None:
        if self._read_ceiling(learners) is None:
            sets = ["threads=1", f"device={self._device}"]
            config = load(None, sets, {"prep": str(self._prep)})
            found = measure_ceiling(config, learners)
            print(found.line(), flush=True)
            file = self._out / f"ceiling-{learners}.json"
            write_atomically(file, json.dumps(asdict(found)).encode())

    def _read_ceiling(self, learners: int) -> Ceiling | None:
        file = self._out / f"ceiling-{learners}.json"
        return Ceiling(**json.loads(file.read_text())) if file.exists() else None


def diverged(run: RunDirectory) -> bool:
    """Whether a run gave up because its steps were not finite."""
    events = run.read_metrics() if run.metrics.is_file() else []
    causes = [event.get("cause") for event in events if event["event"] == "failed"]
    return causes[-1:] == [Cause.DIVERGED.value]


def slow_down(parent: int, times: float, begun: Callable[[], bool]) -> None:
    """Stops learner 0 of a run for all but one in `times` slices, once it has begun."""
    pid = None
    while pid is None and Path(f"/proc/{parent}").exists():
        time.sleep(0.1)
        pid = learner_0(parent) if begun() else None
    try:
        process = None if pid is None else os.pidfd_open(pid)
        while process is not None:
            signal.pidfd_send_signal(process, signal.SIGSTOP)
            time.sleep((times - 1) * SLICE_S)
            signal.pidfd_send_signal(process, signal.SIGCONT)
            time.sleep(SLICE_S)
    except ProcessLookupError:
        return


def learner_0(parent: int) -> int | None:
    """The process of a run's learner 0, by its name, or of DDP's rank 0, by its environment."""
    for entry in Path("/proc").iterdir():
        try:
            stat = (entry / "stat").read_text().rpartition(")")[2].split()
            environment = (entry / "environ").read_bytes().split(b"\0")
            name = (entry / "comm").read_text().strip()
        except (OSError, IndexError):
            continue
        first = name == "learner 0" or b"RANK=0" in environment
        if int(stat[1]) == parent and first:
            return int(entry.name)
    return None


def machine(device: str) -> str:
    """The GPU if it is used, the processor, and how many cores there are."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.partition(":")[2].strip() for line in lines if "model name" in line), "")
    found = f"{model}, {os.cpu_count()} cores"
    return found if device == "cpu" else f"one {torch.cuda.get_device_name()}; {found}"


def main() -> None:
    """Runs it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("prep", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--learners", default="4,8,16")
    parser.add_argument("--seeds", type=int, default=3)
    ours = [name for name in names() if name != "solo"]
    every = ",".join([*ours, "averaging:sharding=static", "ddp"])
    parser.add_argument("--strategies", default=every, help="by name, at 8 learners")
    trials = ",".join(trial for trial in TRIALS if trial != SHIPPED)
    parser.add_argument("--solo", default=trials, help="what solo is tried with besides")
    parser.add_argument("--slow", type=float, default=1.0, help="learner 0 so many times slower")
    parser.add_argument("--cores", type=int, default=0, help="cores to use; 0: all")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="not of ddp")
    parser.add_argument("--alone", action="store_true", help="one run at a time")
    parser.add_argument("--budget", type=float, default=0.0, help="seconds; 0: until it is done")
    parser.add_argument("--slow-limit", type=float, default=0.0, help="seconds; 0: to the end")
    benchmark = Benchmark(parser.parse_args())
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(1))
    try:
        benchmark.run()
    except KeyboardInterrupt:
        print("stopped; the same command goes on from here", flush=True)


if __name__ == "__main__":
    main()
