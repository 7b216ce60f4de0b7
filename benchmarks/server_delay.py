"""What a delay costs a parameter server: AN4, 4 learners, one seed, over settings and rates.

    python benchmarks/server_delay.py FRAMES.npz --out DIR [--jobs 4] [--set device=cuda]

trains solo with and without momentum, and `server` with pushes of 1 and 4 minibatches, with and
without overlap, at several rates, with bounds of staleness, with a warm start, with small
minibatches and with AdamW on the shards, and prints what each has learned on held-out speakers
after every epoch, its mean staleness and the share of minibatches that were dropped. Runs are kept
in DIR/results.jsonl, and not made again.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from unisono.config import load
from unisono.data import convert_frames
from unisono.errors import UserError
from unisono.runs.directory import RunDirectory
from unisono.training.train import train

GRADIENTS = ["strategy.push=gradient"]
NO_MOMENTUM = [*GRADIENTS, "rate.scaled=false", "rate.momentum=0.0"]
WAITING = [*NO_MOMENTUM, "strategy.push_every=1", "strategy.overlap=false"]
ONE = [*NO_MOMENTUM, "strategy.push_every=1"]
FOUR = [*NO_MOMENTUM, "strategy.push_every=4"]
FOUR_WAITING = [*FOUR, "strategy.overlap=false"]
ADAM = ["optimizer=adamw"]


def settings() -> list[tuple[str, float, int, list[str]]]:
    """A name, a learning rate, epochs, and all else."""
    found: list[tuple[str, float, int, list[str]]] = []
    found += [("solo, momentum 0.9", rate, 3, []) for rate in (0.025, 0.05, 0.1)]
    found += [
        ("solo, no momentum", rate, 3, ["rate.momentum=0.0"]) for rate in (0.125, 0.25, 0.5, 1.0)
    ]
    found += [("solo, AdamW", rate, 3, ADAM) for rate in (0.0003, 0.001, 0.003)]
    for name, sets in (
        ("push 1, waiting", WAITING),
        ("push 1, overlap", ONE),
        ("push 4, waiting", FOUR_WAITING),
        ("push 4, overlap", FOUR),
    ):
        found += [(name, rate, 3, sets) for rate in (0.1, 0.2, 0.4, 0.8)]
    for push in (1, 4):
        sets = [*ADAM, *GRADIENTS, f"strategy.push_every={push}"]
        found += [
            (f"push {push}, overlap, AdamW", rate, 3, sets) for rate in (0.0003, 0.001, 0.003)
        ]
    sets = [*ADAM, *GRADIENTS, "strategy.push_every=1", "strategy.overlap=false"]
    found += [("push 1, waiting, AdamW", rate, 3, sets) for rate in (0.0001, 0.0003)]
    for momentum, rate in ((0.5, 0.1), (0.5, 0.2), (0.9, 0.02), (0.9, 0.04)):
        sets = [*WAITING, f"rate.momentum={momentum}"]
        found.append((f"push 1, waiting, momentum {momentum}", rate, 3, sets))
    for share, rate in ((0.1, 0.15), (0.1, 0.2), (0.3, 0.2)):
        sets = [*WAITING, f"strategy.warm_start={share}"]
        found.append((f"push 1, waiting, warm start {share}", rate, 3, sets))
    for push in (2, 3):
        sets = [*WAITING, f"strategy.push_every={push}"]
        found.append((f"push {push}, waiting", 0.1, 3, sets))
    for bound in (3, 4, 6):
        sets = [*WAITING, f"strategy.bound={bound}"]
        found.append((f"push 1, waiting, bound {bound}", 0.1, 3, sets))
    for size, rate in ((128, 0.1), (64, 0.05), (64, 0.1)):
        name = f"push 1, waiting, minibatch {size}"
        found.append((name, rate, 3, [*WAITING, f"minibatch={size}"]))
    found += [("push 1, waiting", rate, 10, WAITING) for rate in (0.1, 0.15)]
    found += [("push 1, overlap", rate, 10, ONE) for rate in (0.05, 0.08)]
    found.append(("push 4, overlap", 0.1, 10, FOUR))
    return found


def run(job: tuple[str, Path, Path, list[str]]) -> dict[str, Any]:
    """One training."""
    key, prep, out, sets = job
    try:
        summary = train(load(None, sets, {"prep": str(prep)}), out)
    except UserError:
        return {"key": key, "curve": []}
    checks = [e for e in RunDirectory(out).read_metrics() if e["event"] == "validation"]
    curve = [round(check["logprob"], 3) for check in checks]
    counts = summary.minibatches
    return {
        "key": key,
        "curve": curve,
        "staleness": round(summary.staleness.mean, 2),
        "dropped": round(counts.dropped / counts.leased, 3),
    }


def main() -> None:
    """Trains what is not done yet, and prints the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("frames", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--jobs", type=int, default=1, help="trainings at a time")
    parser.add_argument("--set", action="append", default=[], help="any key, for all of them")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    kept = options.out / "results.jsonl"
    lines = kept.read_text().splitlines() if kept.exists() else []
    done: dict[str, dict[str, Any]] = {each["key"]: each for each in map(json.loads, lines)}
    with tempfile.TemporaryDirectory() as folder:
        prep = Path(folder) / "prep"
        convert_frames(options.frames, prep)
        jobs: list[tuple[str, Path, Path, list[str]]] = []
        for name, rate, epochs, sets in settings():
            key = f"{name}|{rate}|{epochs}"
            alone = name.startswith("solo")
            who = ["strategy.name=solo"] if alone else ["strategy.name=server", "learners=4"]
            all_sets = ["threads=1", "validation.examples=0", f"epochs={epochs}", *who, *sets]
            all_sets += [f"rate.start={rate}", *options.set]
            if key not in done:
                jobs.append((key, prep, Path(folder) / str(len(jobs)), all_sets))
        with ProcessPoolExecutor(options.jobs, get_context("spawn")) as pool:
            for future in as_completed([pool.submit(run, job) for job in jobs]):
                result = future.result()
                done[result["key"]] = result
                with kept.open("a") as file:
                    file.write(json.dumps(result) + "\n")
    head = f"{'':36} {'rate':>7} {'stale':>6} {'dropped':>7}"
    print(f"{head}  held-out log-prob after each epoch")
    for name, rate, epochs, _ in settings():
        result = done[f"{name}|{rate}|{epochs}"]
        curve = " ".join(f"{value:.3f}" for value in result["curve"]) or "diverged"
        stale, dropped = result.get("staleness", 0.0), result.get("dropped", 0.0)
        print(f"{name:36} {rate:7g} {stale:6.2f} {dropped:7.1%}  {curve}")


if __name__ == "__main__":
    main()
