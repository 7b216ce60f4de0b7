"""Learners that stay against a process for each job: what a round of averaging costs.

    python benchmarks/process_per_job.py --out DIR              4 x 800 LSTM, on a GPU
    python benchmarks/process_per_job.py --out DIR --small      a check on any machine

The same LSTM, minibatches and optimizer, averaged every 100k, 300k, 600k and 1.2M frames of each
learner, in three ways:

- **process**: Kaldi's way. Each round starts one process a job. It reads an archive of examples
  from disk (chunks with their context, 8 bits a number), makes minibatches of it, reads the model
  of the last round from a file, trains, and writes its own; the driver averages the files.
- **forked**: the same, but jobs are forked from a process that has loaded Python and torch, so
  that only what any program pays is paid: a process, a CUDA context, the files.
- **resident**: `unisono.Learner` with `averaging`. Processes stay, frames stay normalised on the
  device, minibatches are gathered ahead, models are exchanged by message.

All learners share the one device here, so training takes as long in all three; what differs is
the rest. Of each round: launch (until a job runs its first line, and until its device is there),
load, preprocess, train, exchange (model files, or messages and waiting), in seconds, the mean over
jobs; the wall-clock of a round; and what resident saves, against process and against forked.
DIR gets rounds.jsonl as they end, table.txt, and saving.html with the plot.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional

from unisono.data import ChunkSource, Part, Prep, Source, synthesise
from unisono.launch.local import Launch
from unisono.learner.learner import Learner
from unisono.report.axes import Quantity, make_axis
from unisono.report.charts import Line, colour_of, line_chart
from unisono.report.page import charts, legend, page
from unisono.strategies import Averaging, Sharding

PARTS = ("launch", "load", "preprocess", "train", "exchange")
CHUNK, LEFT, RIGHT, STATES, DIMENSION = 32, 40, 5, 1000, 40
CONTENDERS = ("process", "forked", "resident")
FORKS = get_context("forkserver")
FORKS.set_forkserver_preload(
    ["torch._dynamo", "unisono.data", "unisono.report.report", "unisono.launch.local"]
)  # an optimizer loads torch._dynamo when it is made


@dataclass(frozen=True, kw_only=True)
class Size:
    """What is trained."""

    cells: int
    layers: int
    minibatch: int
    """Chunks a step."""
    frames: tuple[int, ...]
    """Frames of each learner between two averages."""
    corpus: int
    """Frames of the corpus, about."""


LARGE = Size(
    cells=800, layers=4, minibatch=128, frames=(100_000, 300_000, 600_000, 1_200_000), corpus=10**6
)
SMALL = Size(cells=32, layers=2, minibatch=16, frames=(2_000, 6_000), corpus=20_000)


@dataclass
class Round:
    """Seconds of one round, the mean over its jobs; `wall` is the driver's."""

    way: str
    frames: int
    wall: float = 0.0
    parts: dict[str, float] = field(default_factory=dict)


class Network(nn.Module):
    """LSTM layers and the logits of the frames of a chunk, as cuDNN runs them."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.lstm = nn.LSTM(DIMENSION, size.cells, size.layers, batch_first=True)
        self.logits = nn.Linear(size.cells, STATES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Chunks to logits."""
        logits: torch.Tensor = self.logits(self.lstm(x)[0][:, LEFT + RIGHT :])
        return logits


def loss_of(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The loss of a minibatch."""
    return functional.cross_entropy(model(x).flatten(0, 1), y.flatten())


def make(size: Size) -> tuple[Network, torch.optim.Optimizer, torch.device]:
    """The same model for everybody, on its device, and its optimizer."""
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = Network(size).to(device)
    return model, torch.optim.SGD(model.parameters(), lr=0.01, fused=True), device


# Archives.


def write_archives(prep: Prep, size: Size, folder: Path, learners: int) -> None:
    """For each pace and learner one archive of examples, 8 bits a number."""
    source = ChunkSource(prep, Part.TRAIN, chunk=CHUNK, left=LEFT, right=RIGHT)
    folder.mkdir(parents=True, exist_ok=True)
    for frames in size.frames:
        chunks = frames // CHUNK
        for job in range(learners):
            chosen = (np.arange(chunks) + job * chunks) % len(source)
            x, y = source.batch(chosen)
            low, high = x.amin((0, 1)), x.amax((0, 1))
            packed = ((x - low) * (255 / (high - low))).round().to(torch.uint8)
            path = folder / f"{frames}.{job}.npz"
            np.savez(
                path,
                x=packed.numpy(),
                y=y.to(torch.int16).numpy(),
                low=low.numpy(),
                high=high.numpy(),
            )
            forget(path)


def forget(path: Path) -> None:
    """Has the operating system drop a file from its cache, so that reading it is reading."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


# A job of Kaldi's way.


def job(size: Size, folder: Path, frames: int, number: int, spawned: float) -> dict[str, float]:
    """Trains on one archive, from the last round's model to a file of its own."""
    times = {}
    model, optimizer, device = make(size)
    if device.type == "cuda":
        torch.cuda.synchronize()
    times["launch"] = time.monotonic() - spawned
    began = time.monotonic()
    state = torch.load(folder / "model.pt", map_location=device, weights_only=True)
    model.load_state_dict(state)
    times["exchange"] = time.monotonic() - began
    began = time.monotonic()
    path = folder / f"{frames}.{number}.npz"
    with np.load(path) as archive:
        packed, states, low, high = (archive[key] for key in ("x", "y", "low", "high"))
    times["load"] = time.monotonic() - began
    began = time.monotonic()
    order = np.random.default_rng(number).permutation(len(packed))
    x = torch.from_numpy(packed[order].astype(np.float32) * ((high - low) / 255) + low)
    y = torch.from_numpy(states[order].astype(np.int64))
    times["preprocess"] = time.monotonic() - began
    began = time.monotonic()
    for start in range(0, len(x), size.minibatch):
        some = slice(start, start + size.minibatch)
        loss_of(model, x[some].to(device), y[some].to(device)).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
    if device.type == "cuda":
        torch.cuda.synchronize()
    times["train"] = time.monotonic() - began
    began = time.monotonic()
    torch.save(model.state_dict(), folder / f"model.{number}.pt")
    times["exchange"] += time.monotonic() - began
    forget(path)
    return times


def average(folder: Path, learners: int) -> None:
    """The mean of the jobs' models, as the next round's."""
    models = [
        torch.load(folder / f"model.{n}.pt", map_location="cpu", weights_only=True)
        for n in range(learners)
    ]
    mean = {key: torch.stack([m[key] for m in models]).mean(0) for key in models[0]}
    torch.save(mean, folder / "model.pt")


def spawn(options: argparse.Namespace, frames: int, number: int) -> subprocess.Popen[bytes]:
    """A job as a process of its own."""
    command = [sys.executable, __file__, "--out", str(options.out), "--job", str(number)]
    command += ["--frames", str(frames), "--spawned", repr(time.monotonic())]
    return subprocess.Popen(command + (["--small"] if options.small else []))


def fork(options: argparse.Namespace, size: Size, frames: int, number: int) -> BaseProcess:
    """A job as a copy of a process that has loaded everything, and has used nothing of it."""
    process = FORKS.Process(target=run_job, args=(options, size, frames, number, time.monotonic()))
    process.start()
    return process


def run_job(
    options: argparse.Namespace, size: Size, frames: int, number: int, spawned: float
) -> None:
    """One job; its times go to a file."""
    folder = options.out / "archives"
    times = job(size, folder, frames, number, spawned)
    (folder / f"times.{number}.json").write_text(json.dumps(times))


def rounds_of_jobs(options: argparse.Namespace, size: Size, way: str, frames: int) -> list[Round]:
    """Rounds in Kaldi's way."""
    folder = options.out / "archives"
    torch.manual_seed(0)
    torch.save(Network(size).state_dict(), folder / "model.pt")
    found = []
    for _ in range(options.rounds):
        began = time.monotonic()
        if way == "process":
            jobs = [spawn(options, frames, number) for number in range(options.learners)]
            failed = any([each.wait() for each in jobs])
        else:
            forked = [fork(options, size, frames, number) for number in range(options.learners)]
            for process in forked:
                process.join()
            failed = any(process.exitcode for process in forked)
        if failed:
            raise RuntimeError(f"a job of {way} failed")
        averaging = time.monotonic()
        average(folder, options.learners)
        ended = time.monotonic()
        times = [
            json.loads((folder / f"times.{n}.json").read_text()) for n in range(options.learners)
        ]
        parts = {part: fmean(t[part] for t in times) for part in PARTS}
        parts["exchange"] += ended - averaging
        found.append(Round(way, frames, ended - began, parts))
    return found


# Our way.


class Repeated(Source):
    """As many examples as are wanted, of a source that may have fewer."""

    def __init__(self, source: Source, count: int) -> None:
        self._source, self._count = source, count

    def __len__(self) -> int:
        return self._count

    def batch(self, indices: NDArray[np.int64]) -> tuple[torch.Tensor, ...]:
        """Examples, from the start again where they are over."""
        return self._source.batch(indices % len(self._source))


def reside(options: argparse.Namespace, size: Size) -> None:
    """One learner: trains all rounds, and notes when each ended and what it waited for."""
    model, optimizer, device = make(size)
    prep = Prep.open(options.out / "prep")
    chunks = ChunkSource(prep, Part.TRAIN, chunk=CHUNK, left=LEFT, right=RIGHT, device=device)
    minibatches = max(1, options.frames // CHUNK // size.minibatch)
    every = minibatches * size.minibatch
    source = Repeated(chunks, every * options.rounds * options.learners)
    ready = time.monotonic()
    marks = []

    def mark(learner: Learner) -> None:
        if device.type == "cuda":
            torch.cuda.synchronize()
        learner.meter.report(0.0, 0, 0.0)  # brings what was waited for up to date
        meter = learner.meter
        marks.append((time.monotonic(), meter.data_wait_s, meter.round_wait_s))

    with Learner(
        model, optimizer, Averaging(every=every, sharding=Sharding.STATIC), prefetch=4
    ) as learner:
        for taken, (x, y) in enumerate(learner.draw(source, 1, size.minibatch)):
            if taken % minibatches == 0:
                mark(learner)
            learner.step(loss_of(model, x.to(device), y.to(device)))
        mark(learner)
        number = learner.number
    times = {"launch": ready - options.spawned, "marks": marks}
    (options.out / "archives" / f"times.{number}.json").write_text(json.dumps(times))


def resident_rounds(options: argparse.Namespace, size: Size, frames: int) -> list[Round]:
    """Rounds of learners that stay; the launch is paid once, and told with the first."""
    spawned = time.monotonic()
    command = [sys.executable, __file__, "--out", str(options.out), "--reside"]
    command += ["--frames", str(frames), "--spawned", repr(spawned)]
    command += ["--rounds", str(options.rounds), "--learners", str(options.learners)]
    outcome = Launch(
        command=command + (["--small"] if options.small else []),
        learners=options.learners,
        timeout=60.0,
    ).run()
    folder = options.out / "archives"
    times: list[dict[str, Any]] = [
        json.loads((folder / f"times.{n}.json").read_text()) for n in range(options.learners)
    ]
    if outcome.failed:
        print(f"resident: {outcome.reason}", flush=True)
    found = []
    for place in range(min(len(t["marks"]) for t in times) - 1):
        pairs = [(t["marks"][place], t["marks"][place + 1]) for t in times]
        wall = fmean(after[0] - before[0] for before, after in pairs)
        load = fmean(after[1] - before[1] for before, after in pairs)
        exchange = fmean(after[2] - before[2] for before, after in pairs)
        parts = {"launch": 0.0, "load": load, "preprocess": 0.0, "exchange": exchange}
        parts["train"] = wall - load - exchange
        if place == 0:
            parts["launch once"] = fmean(t["launch"] for t in times)
        found.append(Round("resident", frames, wall, parts))
    return found


# The table.


def mean_round(rounds: list[Round], way: str, frames: int) -> Round | None:
    """The mean of a way's rounds but the first, which warms up, where there are more."""
    mine = [r for r in rounds if (r.way, r.frames) == (way, frames)]
    if not mine:
        return None
    mine = mine[1:] or mine
    parts = {part: fmean(r.parts[part] for r in mine) for part in PARTS}
    return Round(way, frames, fmean(r.wall for r in mine), parts)


def table(rounds: list[Round], size: Size) -> list[str]:
    """A row a pace and way; then what is saved."""
    head = ("frames", *PARTS, "round", "saved/process", "saved/forked")
    lines = [f"{'':9}" + "".join(f"{name:>14}" for name in head)]
    for frames in size.frames:
        means = {way: mean_round(rounds, way, frames) for way in CONTENDERS}
        for way, mean in means.items():
            if mean is None:
                lines.append(f"{way:9}{frames:14}  not measured")
                continue
            cells = [f"{mean.parts[part]:14.3f}" for part in PARTS] + [f"{mean.wall:14.3f}"]
            if way == "resident":
                for other in ("process", "forked"):
                    against = means[other]
                    saved = None if against is None else 1 - mean.wall / against.wall
                    cells.append(f"{'-':>14}" if saved is None else f"{100 * saved:13.1f}%")
            lines.append(f"{way:9}{frames:14}" + "".join(cells))
    once = [r.parts["launch once"] for r in rounds if "launch once" in r.parts]
    if once:
        lines.append(f"resident learners are launched once: {fmean(once):.1f} s")
    return lines


def plot(rounds: list[Round], size: Size) -> str:
    """A page: what is saved, against the frames between two averages."""
    lines = []
    for colour, other in enumerate(("process", "forked")):
        points = []
        for frames in size.frames:
            ours, theirs = (mean_round(rounds, way, frames) for way in ("resident", other))
            if ours is not None and theirs is not None:
                points.append((float(frames), 1 - ours.wall / theirs.wall))
        lines.append(Line(f"against {other}", [points], colour=colour, dots=True))
    seen = [point for line in lines for point in line.curve[0]]
    x = make_axis("frames between two averages", [p[0] for p in seen], Quantity.COUNT, zero=True)
    y = make_axis("wall-clock saved", [p[1] for p in seen], Quantity.SHARE, zero=True)
    title = "Learners that stay, against a process a job"
    names = legend([("", colour_of(line.colour), line.name) for line in lines])
    return page(title, [names, charts([line_chart(title, x, y, lines)])])


def main() -> None:
    """Measures, prints and plots; a way that fails is told, and the others go on."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--learners", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3, help="of each way and pace")
    parser.add_argument("--limit", type=float, default=1e9, help="seconds to begin rounds in")
    parser.add_argument("--small", action="store_true", help="a small model, for a check")
    parser.add_argument("--job", type=int, default=None, help=argparse.SUPPRESS)
    parser.add_argument("--reside", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--frames", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--spawned", type=float, default=0.0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    size = SMALL if options.small else LARGE
    if options.job is not None:
        run_job(options, size, options.frames, options.job, options.spawned)
        return
    if options.reside:
        reside(options, size)
        return
    ends = time.monotonic() + options.limit
    utterances = max(1, size.corpus // (40 * 400))
    prep = synthesise(
        options.out / "prep",
        speakers=40,
        utterances_per_speaker=utterances,
        frames_per_utterance=400,
        states=STATES,
        dimension=DIMENSION,
        seed=0,
        noise=1.5,
    )
    write_archives(prep, size, options.out / "archives", options.learners)
    rounds: list[Round] = []
    for frames in size.frames:
        for way in CONTENDERS:
            if time.monotonic() > ends:
                break
            try:
                if way == "resident":
                    found = resident_rounds(options, size, frames)
                else:
                    found = rounds_of_jobs(options, size, way, frames)
            except (OSError, RuntimeError, ValueError) as error:
                print(f"{way} every {frames}: {error}", flush=True)
                continue
            rounds += found
            with (options.out / "rounds.jsonl").open("a") as file:
                file.writelines(json.dumps(asdict(r)) + "\n" for r in found)
            walls = ", ".join(f"{r.wall:.2f}" for r in found)
            print(f"{way} every {frames} frames: {walls} s a round", flush=True)
    lines = table(rounds, size)
    (options.out / "table.txt").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))
    (options.out / "saving.html").write_text(plot(rounds, size))


if __name__ == "__main__":
    main()
