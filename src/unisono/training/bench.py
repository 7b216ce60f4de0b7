"""``unisono bench``: every way of training on this machine, timed in turns, as ratios."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from unisono.config import Config, dump
from unisono.data import synthesise
from unisono.errors import UserError
from unisono.report.time_to_target import Ceiling
from unisono.text import counted
from unisono.training.contenders import CONTENDERS

_CEILING = {"solo": "bare", "bare": "bare"}
CEILING_SECONDS = 1.0
CEILING_TURNS = 5

Samples = dict[str, list[dict[str, Any]]]


@dataclass(frozen=True)
class BenchRow:
    """One way: its rate, and its ratio to its ceiling."""

    name: str
    steps_per_s: float
    ratio: float
    interval: tuple[float, float] | None
    """None: of one turn there is none."""
    slowest: float
    """The slowest process' steps as a share of the mean: a way that waits cannot be faster."""
    rounds_per_s: float
    megabytes_per_s: float
    ended: str = ""
    """Why there are no figures: in each turn it gave up, for this reason."""
    turns_lost: int = 0
    """Turns in which it gave up; the figures are of the others."""

    def line(self) -> str:
        """A line of the table."""
        if self.ended:
            return f"{self.name:16} {self.ended}"
        interval = "-" if self.interval is None else "{:.3f}..{:.3f}".format(*self.interval)
        return (
            f"{self.name:16} {self.steps_per_s:9.1f} {self.ratio:7.3f} "
            f"{interval:>15} {self.slowest:8.3f} {self.rounds_per_s:9.2f} "
            f"{self.megabytes_per_s:8.1f}"
        )


@dataclass(kw_only=True)
class Bench:
    """Times all ways.

    A ratio is taken inside each turn, against ``independent`` (``solo``: against ``bare``), and the
    median over the turns is reported with the interval that holds the middle 90 percent of them.
    ``slowest`` of ``independent`` is the ceiling of every way that waits: with it the cores of a
    machine that are not equally fast are told from the cost of sharing. A way that diverges has no
    figures of that turn, and the others go on.
    """

    learners: int
    slow: float
    seconds: float
    turns: int
    json: Path | None
    say: Callable[[str], None]
    config: Config = field(default_factory=lambda: Config(threads=1))

    def run(self) -> list[str]:
        """The table as lines.

        Raises:
            UserError: the file of the rows cannot be written; said before anything is timed, or,
                where the disk has become full since, after the table.
        """
        self._check_file()
        rows = self.rows()
        head = f"{'':16} {'steps/s':>9} {'ratio':>7} {'90% interval':>15} {'slowest':>8} "
        head += f"{'rounds/s':>9} {'MB/s':>8}"
        lines = [f"{counted(self.learners, 'learner')}, learner 0 slowed {self.slow:g}x", head]
        lines += [row.line() for row in rows]
        for row in rows:
            if row.turns_lost:
                lines.append(f"{row.name} gave up in {row.turns_lost} of {self.turns} turns.")
        if self.json is not None:
            table = [asdict(row) for row in rows]
            whole = {"learners": self.learners, "slow": self.slow, "rows": table}
            try:
                self.json.write_text(json.dumps(whole, indent=1))
            except OSError as error:
                for line in lines:  # They took long.
                    self.say(line)
                raise UserError(f"cannot write --json {self.json}: {error.strerror}") from None
        return lines

    def _check_file(self) -> None:
        if self.json is None:
            return
        try:
            with self.json.open("a"):
                pass
        except OSError as error:
            raise UserError(f"cannot write --json {self.json}: {error.strerror}") from None

    def rows(self) -> list[BenchRow]:
        """Runs the processes, and reduces what they measured."""
        with tempfile.TemporaryDirectory(prefix="unisono-bench-") as folder:
            prep = Path(folder) / "prep"
            synthesise(
                prep,
                speakers=20,
                utterances_per_speaker=10,
                frames_per_utterance=200,
                states=790,
                dimension=40,
                seed=0,
                noise=1.0,
            )
            config = self.config.model_copy(update={"prep": str(prep)})
            names = [way.name for way in CONTENDERS]
            samples = measure(
                config, names, self.learners, self.slow, self.seconds, self.turns, self.say
            )
        return [self._row(way.name, way.alone, samples) for way in CONTENDERS]

    def _row(self, name: str, alone: bool, samples: Samples) -> BenchRow:
        ceiling = samples[_CEILING.get(name, "independent")]
        pairs = [(m, c) for m, c in zip(samples[name], ceiling, strict=True) if not m["ended"]]
        lost = len(ceiling) - len(pairs)
        if not pairs:
            return BenchRow(name, 0.0, 0.0, None, 0.0, 0.0, 0.0, samples[name][0]["ended"], lost)
        ratios = sorted(m["steps"] / max(c["steps"], 1e-9) for m, c in pairs)
        mine = [m for m, _ in pairs]
        return BenchRow(
            name,
            statistics.median(m["steps"] for m in mine),
            statistics.median(ratios),
            _middle(ratios),
            1.0 if alone else statistics.median(m["slowest"] for m in mine),
            statistics.median(m["rounds"] for m in mine) / self.learners,
            statistics.median(m["bytes"] for m in mine) / 1e6,
            turns_lost=lost,
        )


def measure(
    config: Config,
    names: Sequence[str],
    learners: int,
    slow: float,
    seconds: float,
    turns: int,
    say: Callable[[str], None],
) -> Samples:
    """Times ways in turns, all in each; returns what was measured, by name and turn.

    Args:
        config: model, data, minibatch and optimizer.
        names: of ``CONTENDERS``.
        learners: processes.
        slow: how many times as much the first process computes a step.
        seconds: that each way is timed in a turn.
        turns: how many.
        say: takes lines that tell how it goes.

    Raises:
        UserError: a process ended with an error.
    """
    with tempfile.TemporaryDirectory(prefix="unisono-bench-") as folder:
        file = Path(folder) / "config.toml"
        file.write_text(dump(config))
        command = [sys.executable, "-m", "unisono.training.bench_worker", str(os.getpid())]
        command += [str(file), str(Path(folder) / "store")]
        rest = [str(learners), str(slow), str(seconds), str(turns), *names]
        processes = []
        # What a process computes with before it has set its threads, as while it opens the data.
        threads = str(max(1, (os.cpu_count() or 1) // learners))
        samples: Samples = {name: [] for name in names}
        try:
            for number in range(learners):
                processes.append(
                    subprocess.Popen(
                        [*command, str(number), *rest],
                        stdout=subprocess.PIPE if number == 0 else None,
                        text=True,
                        env={**os.environ, "OMP_NUM_THREADS": threads},
                    )
                )
            assert processes[0].stdout is not None
            for line in processes[0].stdout:
                sample = json.loads(line)
                samples[sample["name"]].append(sample)
                if sample["ended"]:
                    say(f"  {sample['name']:16} gave up in turn {sample['turn'] + 1}")
                elif sample["turn"] == 0:
                    say(f"  {sample['name']:16} {sample['steps']:9.1f} steps/s (turn 1)")
            if any([process.wait() for process in processes]):
                raise UserError("a process of the bench failed; its message is above")
        finally:
            for process in processes:
                process.kill()
                process.wait()
    return samples


def measure_ceiling(config: Config, learners: int) -> Ceiling:
    """What ``learners`` independent processes do over one alone, in minibatches a second.

    Both are timed in turns, so that a machine that becomes slower does so for both. They compute
    with the threads that a run of so many learners, and one of one, would have.
    """
    names = ["bare", "independent"]
    quiet: Callable[[str], None] = lambda line: None  # noqa: E731
    samples = measure(config, names, learners, 1.0, CEILING_SECONDS, CEILING_TURNS, quiet)
    alone = [sample["steps"] for sample in samples["bare"]]
    together = [sample["steps"] for sample in samples["independent"]]
    ratios = sorted(t / max(a, 1e-9) for a, t in zip(alone, together, strict=True))
    low, high = _middle(ratios) or (ratios[0], ratios[0])
    return Ceiling(
        learners,
        statistics.median(ratios),
        low,
        high,
        statistics.median(alone),
        statistics.median(together),
    )


def _middle(values: list[float]) -> tuple[float, float] | None:
    """The values between which the middle 90 percent of a sorted list lie; None: of one value."""
    if len(values) < 2:
        return None
    spare = int(0.05 * len(values))
    return values[spare], values[len(values) - 1 - spare]
