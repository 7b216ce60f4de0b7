"""Frames a second on one GPU: `unisono train` beside bare PyTorch loops.

    python benchmarks/gpu.py --out DIR [--turns 2] [--rows dnn-1024,...]

Synthetic frames of 42 numbers, 10,217 states. Each row is measured in turns: a bare loop as anybody
would write it (autocast to bfloat16, fused SGD with momentum), the same loop compiled and captured
as one CUDA graph, and `unisono train` in its steady state, as its own metrics have it: the median
of the events `train`, one a second, after the first ones. The bare loops train one minibatch again
and again; `train` draws, gathers, clips, checks, counts and reports. Medians over turns.

Prints the table, and writes DIR/results.json.

The floor of a step of SGD with momentum on W weights and N frames, at P FLOP/s (measured) and
4.3 TB/s: 6 N W / P for the products, and 26 bytes a weight (weight, gradient and momentum read,
weight and momentum written, and their bfloat16 forms) for the update.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import torch
from gpu_loops import Shape, captured, eager, frames_a_second, peak

from unisono.data import synthesise
from unisono.errors import UserError
from unisono.runs.directory import RunDirectory

FIRST, COUNTED = 3, 6
"""Events that are passed over, and those that count."""
PATIENCE_S = 150.0
MANY = 5000
"""Epochs: no run is trained to its end."""


@dataclass(frozen=True)
class Row:
    """A row of the table: a model, and options of `unisono train`."""

    title: str
    shape: Shape
    options: tuple[str, ...] = ()
    learners: int = 1
    bare: bool = True
    found: dict[str, list[float]] = field(default_factory=dict)


def dnn(rows: int) -> Shape:
    """5 x 2048."""
    return Shape((2048,) * 5, rows)


LSTM = Shape((800,) * 4, 1024, chunk=100, delay=5)
BLSTM = Shape((1024,) * 6, 1024, chunk=100, bottleneck=256)
ROWS = {
    "dnn-1024": Row("DNN 5 x 2048, minibatch 1024", dnn(1024)),
    "dnn-4096": Row("DNN 5 x 2048, minibatch 4096", dnn(4096)),
    "ng-1024": Row("the same, ng-sgd, 1024", dnn(1024), ("--optimizer", "ng-sgd"), bare=False),
    "lstm": Row("LSTM 4 x 800, 1024 sequences of 100", LSTM),
    "blstm": Row("BLSTM 6 x 1024, 1024 sequences of 100", BLSTM),
    "eager-1024": Row("DNN, 1024, not captured", dnn(1024), ("--set", "capture=false"), bare=False),
    "averaging-4": Row(
        "DNN, 4096, 4 learners, averaging",
        dnn(4096),
        ("--strategy", "averaging", "--optimizer", "sgd"),
        4,
        bare=False,
    ),
    "gossip-4": Row(
        "DNN, 4096, 4 learners, gossip-random",
        dnn(4096),
        ("--strategy", "gossip-random", "--optimizer", "sgd"),
        4,
        bare=False,
    ),
}


def train_options(shape: Shape) -> list[str]:
    """The same model for `unisono train`."""
    sets = [
        f"network.hidden={list(shape.hidden)}",
        f"minibatch={shape.frames}",
        f"epochs={MANY}",
        "rate.start=0.001",
        "rate.schedule=constant",
        "validation.enabled=false",
        "checkpoint.every=100000000000",
        "device=cuda",
    ]
    model = "dnn"
    if shape.chunk:
        model = "blstm" if shape.bottleneck else "lstm"
        sets += [f"network.chunk={shape.chunk}", "network.left=0", "network.right=0"]
        sets += [f"network.delay={shape.delay}", "network.projection=0"]
        sets += [f"network.bottleneck={shape.bottleneck}"]
    options = ["--model", model]
    for each in sets:
        options += ["--set", each]
    return options


def train(row: Row, prep: Path, folder: Path) -> float:
    """Frames a second of all learners of `unisono train`, in the steady state."""
    run = folder / f"run-{time.monotonic_ns()}"
    command = [sys.executable, "-m", "unisono", "train", str(prep), "--out", str(run)]
    command += ["--learners", str(row.learners), *train_options(row.shape), *row.options]
    log = run.with_suffix(".log")
    with log.open("wb") as stream:
        process = subprocess.Popen(command, stdout=stream, stderr=stream, start_new_session=True)
        try:
            rates = _steady(RunDirectory(run), process, row.learners)
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    if rates is None:
        print(f"{row.title}: no steady state\n{log.read_text()[-3000:]}", flush=True)
        return 0.0
    return rates * max(1, row.shape.chunk)


def _steady(run: RunDirectory, process: subprocess.Popen[bytes], learners: int) -> float | None:
    """The sum over learners of the median rate."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.5)
        if not run.metrics.is_file():
            continue
        rates: dict[int, list[float]] = {}
        for event in run.read_metrics():
            if event["event"] == "train":
                rates.setdefault(event["learner"], []).append(event["rate"])
        enough = [each for each in rates.values() if len(each) >= FIRST + COUNTED]
        if len(enough) == learners:
            return sum(statistics.median(each[FIRST : FIRST + COUNTED]) for each in enough)
    return None


def measure(row: Row, prep: Path, folder: Path) -> None:
    """One turn of a row."""
    if row.bare:
        for name, loop in (("eager", eager), ("captured", captured)):
            step = loop(row.shape)
            row.found.setdefault(name, []).append(frames_a_second(row.shape, step))
            del step
            gc.collect()
            torch.cuda.empty_cache()
    row.found.setdefault("train", []).append(train(row, prep, folder))
    told = {name: round(values[-1]) for name, values in row.found.items()}
    print(f"{row.title}: {told}", flush=True)


def table(rows: list[Row], most: float) -> list[str]:
    """The medians, and what they are of the captured loop and of the peak."""
    lines = [
        f"{torch.cuda.get_device_name()}, torch {torch.__version__}; products of bfloat16 at "
        f"{most / 1e12:.0f} TFLOP/s; frames a second",
        f"{'':38} {'eager':>10} {'captured':>10} {'train':>10} {'of captured':>12} "
        f"{'TFLOP/s':>8} {'of peak':>8}",
    ]
    for row in rows:
        middle = {name: statistics.median(values) for name, values in row.found.items()}
        weights = sum(p.numel() for p in row.shape.build().parameters() if p.dim() > 1)
        flops = 6 * weights * middle["train"]
        bare = [
            f"{middle[name]:10,.0f}" if row.bare else " " * 10 for name in ("eager", "captured")
        ]
        share = f"{middle['train'] / middle['captured']:12.2f}" if row.bare else " " * 12
        lines.append(
            f"{row.title:38} {bare[0]} {bare[1]} {middle['train']:10,.0f} {share} "
            f"{flops / 1e12:8.0f} {flops / most:8.2f}"
        )
    return lines


def main() -> None:
    """Measures all rows in turns, and prints the table after each turn."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--rows", default=",".join(ROWS))
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise UserError("this benchmark needs a GPU")
    rows = [ROWS[name] for name in options.rows.split(",")]
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prep = folder / "prep"
        synthesise(
            prep,
            speakers=60,
            utterances_per_speaker=100,
            frames_per_utterance=400,
            states=10217,
            dimension=42,
            seed=0,
            noise=1.0,
        )
        most = peak()
        for _ in range(options.turns):
            for row in rows:
                measure(row, prep, folder)
                lines = table([each for each in rows if each.found], most)
                (options.out / "table.txt").write_text("\n".join(lines) + "\n")
                found = {each.title: each.found for each in rows}
                (options.out / "results.json").write_text(json.dumps(found, indent=1))
            print("\n" + "\n".join(lines), flush=True)


if __name__ == "__main__":
    main()
