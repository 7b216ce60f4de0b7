"""``unisono bench``: every way of training on this machine, timed in turns, as ratios."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from unisono.data import synthesise
from unisono.errors import UserError
from unisono.training.contenders import CONTENDERS

_CEILING = {"solo": "bare", "bare": "bare"}


@dataclass(frozen=True)
class BenchRow:
    """One way: its rate, and its ratio to its ceiling."""

    name: str
    steps_per_s: float
    ratio: float
    interval: tuple[float, float]
    slowest: float
    """The slowest process' steps as a share of the mean: a way that waits cannot be faster."""
    rounds_per_s: float
    megabytes_per_s: float


@dataclass(kw_only=True)
class Bench:
    """Times all ways.

    A ratio is taken inside each turn, against ``independent`` (``solo``: against ``bare``), and the
    median over the turns is reported with the interval that holds the middle 90 percent of them.
    ``slowest`` of ``independent`` is the ceiling of every way that waits: with it the cores of a
    machine that are not equally fast are told from the cost of sharing.
    """

    learners: int
    slow: float
    seconds: float
    turns: int
    json: Path | None
    say: Callable[[str], None]

    def run(self) -> list[str]:
        """The table as lines."""
        rows = self.rows()
        if self.json is not None:
            table = [asdict(row) for row in rows]
            whole = {"learners": self.learners, "slow": self.slow, "rows": table}
            self.json.write_text(json.dumps(whole, indent=1))
        head = f"{'':16} {'steps/s':>9} {'ratio':>7} {'90% interval':>15} {'slowest':>8} "
        head += f"{'rounds/s':>9} {'MB/s':>8}"
        lines = [f"{self.learners} learners, learner 0 slowed {self.slow:g}x", head]
        for row in rows:
            low, high = row.interval
            lines.append(
                f"{row.name:16} {row.steps_per_s:9.1f} {row.ratio:7.3f} "
                f"{f'{low:.3f}..{high:.3f}':>15} {row.slowest:8.3f} {row.rounds_per_s:9.2f} "
                f"{row.megabytes_per_s:8.1f}"
            )
        return lines

    def rows(self) -> list[BenchRow]:
        """Runs the processes, and reduces what they measured."""
        samples = self._measure()
        rows = []
        for way in CONTENDERS:
            ceiling = samples[_CEILING.get(way.name, "independent")]
            mine = samples[way.name]
            pairs = zip(mine, ceiling, strict=True)
            ratios = sorted(m["steps"] / max(c["steps"], 1e-9) for m, c in pairs)
            rows.append(
                BenchRow(
                    way.name,
                    statistics.median(m["steps"] for m in mine),
                    statistics.median(ratios),
                    _middle(ratios),
                    1.0 if way.alone else statistics.median(m["slowest"] for m in mine),
                    statistics.median(m["rounds"] for m in mine) / self.learners,
                    statistics.median(m["bytes"] for m in mine) / 1e6,
                )
            )
        return rows

    def _measure(self) -> dict[str, list[dict[str, Any]]]:
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
            processes = [self._start(prep, Path(folder) / "store", n) for n in range(self.learners)]
            samples: dict[str, list[dict[str, Any]]] = {way.name: [] for way in CONTENDERS}
            assert processes[0].stdout is not None
            for line in processes[0].stdout:
                sample = json.loads(line)
                samples[sample["name"]].append(sample)
                if sample["turn"] == 0:
                    self.say(f"  {sample['name']:16} {sample['steps']:9.1f} steps/s (turn 1)")
            if any([process.wait() for process in processes]):
                raise UserError("a process of the bench failed; its message is above")
        return samples

    def _start(self, prep: Path, store: Path, number: int) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "unisono.training.bench_worker", str(prep), str(store)]
        command += [str(number), str(self.learners), str(self.slow), str(self.seconds)]
        command += [str(self.turns)]
        out = subprocess.PIPE if number == 0 else None
        return subprocess.Popen(command, stdout=out, text=True)


def _middle(values: list[float]) -> tuple[float, float]:
    """The values between which the middle 90 percent of a sorted list lie."""
    spare = int(0.05 * len(values))
    return values[spare], values[len(values) - 1 - spare]
