"""What `prepare` costs by phase: CPU seconds of the workers and of the process that drives them.

    python benchmarks/prepare.py DATA LEXICON [--processes 2] [--cores 16]

Workers share their CPU time among all cores; whatever the driving process does is counted as
serial, as if no worker could work meanwhile. So `cores` cores take about

    CPU seconds of the workers / cores + CPU seconds of the driving process

wall-clock seconds, if no worker waits for another and as long as memory is fast enough for all.
CPU times are what the kernel accounts to each process, so another program on the machine matters
little. Starting the workers is counted with the first phase that needs them.
"""

from __future__ import annotations

import argparse
import functools
import multiprocessing.forkserver
import re
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from unisono.data import Prep
from unisono.speech import prepare as prepare_module
from unisono.speech.alignment import trainer
from unisono.speech.prepare import PrepareOptions, TyingMethod, prepare
from unisono.speech.validation import InputOptions
from unisono.speech.worker_pool import WorkerPool

# The functions of `prepare` whose time is counted by itself, without what they call of these.
_PHASES: tuple[tuple[Any, str, str], ...] = (
    (prepare_module, "validate_data", "validation"),
    (prepare_module, "extract_corpus", "features"),
    (prepare_module, "_align", "normalised cepstra"),
    (trainer.Trainer, "monophones", "monophones, flat start"),
    (trainer.Trainer, "triphones", "tree"),
    (trainer.Trainer, "align", "alignment of all"),
    (prepare_module, "_decoding_assets", "language model, assets"),
    (prepare_module, "make_corpus", "writing"),
    (prepare_module, "write_prep", "writing"),
)
_PASS = re.compile(r"pass +\d+ of (\d+): .*?(, aligned anew)?$")


class Meter:
    """CPU seconds by phase, of this process and of its workers."""

    def __init__(self) -> None:
        self.own: dict[str, float] = defaultdict(float)
        self.workers: dict[str, float] = defaultdict(float)
        self.likelihoods: list[str] = []
        self._phases = ["other"]
        self._own_before = time.process_time()
        self._seen: dict[str, int] = {}

    def mark(self, phase: str | None = None) -> None:
        """Counts what was used since the last mark for a phase; the present one if None."""
        phase = phase or self._phases[-1]
        now = time.process_time()
        self.own[phase] += now - self._own_before
        self._own_before = now
        for pid, nanoseconds in _worker_ns().items():
            self.workers[phase] += max(nanoseconds - self._seen.get(pid, 0), 0) / 1e9
            self._seen[pid] = nanoseconds

    def wrap(self, place: Any, name: str, phase: str) -> None:
        """Counts what a function uses for a phase."""
        function: Callable[..., Any] = getattr(place, name)

        @functools.wraps(function)
        def counted(*arguments: Any, **named: Any) -> Any:
            self.mark()
            self._phases.append(phase)
            try:
                return function(*arguments, **named)
            finally:
                self.mark()
                self._phases.pop()

        setattr(place, name, counted)

    def log(self, line: str) -> None:
        """Counts a pass when its line comes."""
        found = _PASS.search(line)
        if found:
            kind = "monophones" if found[1] == str(trainer.MONOPHONES.passes) else "tied states"
            self.mark(f"{kind}, {'passes that align' if found[2] else 'other passes'}")
            self.likelihoods.append(line)
        else:
            self.mark()


def _worker_ns() -> dict[str, int]:
    """Nanoseconds of CPU time of each process that the fork server has started."""
    server = multiprocessing.forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
    if server is None:
        return {}
    used = {}
    for pid in Path(f"/proc/{server}/task/{server}/children").read_text().split():
        try:
            threads = list(Path(f"/proc/{pid}/task").glob("*/schedstat"))
            used[pid] = sum(int(thread.read_text().split()[0]) for thread in threads)
        except (FileNotFoundError, ProcessLookupError):
            continue
    return used


def main() -> None:
    """Prints a table of phases."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("lexicon", type=Path)
    parser.add_argument("--processes", type=int, default=2, help="2 or more")
    parser.add_argument("--cores", type=int, default=16, help="of the machine to project to")
    parser.add_argument("--tying", choices=["none", "tree"], default="tree")
    parser.add_argument("--out", type=Path, help="keep the PREP")
    options = parser.parse_args()
    meter = Meter()
    for place, name, phase in _PHASES:
        meter.wrap(place, name, phase)
    meter.wrap(WorkerPool, "close", "ending workers")
    settings = PrepareOptions(
        processes=options.processes, tying=TyingMethod(options.tying), inputs=InputOptions()
    )
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        out = options.out or Path(scratch) / "prep"
        made = prepare(options.data, options.lexicon, out, settings, meter.log)
        hours = _hours(made)
    wall = time.monotonic() - begun
    meter.mark()
    print(f"{options.data.name}: {hours:.2f} h of speech, {options.processes} processes")
    print(f"{'CPU seconds':34}{'workers':>10}{'serial':>10}")
    for phase in sorted(meter.own, key=lambda p: -meter.workers[p] - meter.own[p]):
        if meter.own[phase] + meter.workers[phase] >= 0.05:
            print(f"{phase:34}{meter.workers[phase]:10.1f}{meter.own[phase]:10.2f}")
    worker, serial = sum(meter.workers.values()), sum(meter.own.values())
    print(f"{'all':34}{worker:10.1f}{serial:10.2f}")
    projected = worker / options.cores + serial
    print(
        f"{options.cores} cores: {worker:.1f} / {options.cores} + {serial:.2f} = "
        f"{projected:.1f} s, {hours * 3600 / projected:.0f} times real time ({wall:.0f} s here)"
    )
    for turn in (0, trainer.MONOPHONES.passes - 1, len(meter.likelihoods) - 1):
        print(meter.likelihoods[turn])


def _hours(made: Prep) -> float:
    return float(made.starts[-1]) * 0.01 / 3600


if __name__ == "__main__":
    main()
