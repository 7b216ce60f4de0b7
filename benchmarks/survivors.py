"""What a death costs the others: their rate after a kill, against their rate before.

    python benchmarks/survivors.py [--strategies averaging,gossip-random] [--learners 3] [--kills 3]

Learners run on nodes of a Ray cluster that is made on this machine. For each kill, the steps of the
learners that live through it are counted in the ten seconds before it, and in the ten seconds that
begin one timeout after it: by then the death has been found, and a newcomer is in the dead one's
place. Printed is the ratio, kill by kill, and the median.

A step lasts at least ``--pace`` seconds: with fewer cores than learners, the survivors of a death
would otherwise gain, and lose when a newcomer starts, for want of cores and not of each other.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from ray.cluster_utils import Cluster

from unisono.data import synthesise
from unisono.learner.learner import Learner

WINDOW_S = 10.0
PACE = "UNISONO_BENCH_PACE"
CONTENDERS = {
    "averaging-static": ["averaging", "--set", "strategy.sharding=static"],
    "averaging": ["averaging"],
}


def setup() -> None:
    """Called by Ray in each process of the cluster: gives the steps their pace."""
    pace, step = float(os.environ[PACE]), Learner.step

    def paced(self: Learner, loss: torch.Tensor) -> None:
        time.sleep(pace)
        step(self, loss)

    Learner.step = paced  # type: ignore[method-assign]


def environment(pace: float) -> dict[str, str]:
    """For the command, so that Ray calls ``setup``."""
    paths = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    variables = {PACE: str(pace), "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    runtime = {"worker_process_setup_hook": "survivors.setup", "env_vars": variables}
    job = {"runtime_env": runtime}
    return {**os.environ, "RAY_JOB_CONFIG_JSON_ENV_VAR": json.dumps(job)}


class Run:
    """One training run, and the steps that its learners have logged."""

    def __init__(
        self, folder: Path, address: str, way: str, learners: int, timeout: float, pace: float
    ) -> None:
        self.out = folder / way
        self._output = (folder / f"{way}.txt").open("w+")
        command = [sys.executable, "-m", "unisono", "train", str(folder / "prep")]
        command += ["--out", str(self.out), "--cluster", address, "--learners", str(learners)]
        command += ["--strategy", *CONTENDERS.get(way, [way]), "--epochs", "100000"]
        command += ["--set", "threads=1", "--set", f"timeout_s={timeout}"]
        command += ["--set", "validation.enabled=false", "--set", "checkpoint.every=1000000000"]
        self.process = subprocess.Popen(
            command, stdout=self._output, stderr=subprocess.STDOUT, env=environment(pace)
        )

    def text(self) -> str:
        """What it has printed."""
        return Path(self._output.name).read_text()

    def processes(self) -> dict[int, int]:
        """Processes of all learners that were ever ready, by number."""
        found = re.findall(r"learner (\d+) is on .*, process (\d+)", self.text())
        return {int(number): int(pid) for number, pid in found}

    def living(self) -> list[int]:
        """Learners that have trained and were not lost."""
        lost = {int(n) for n in re.findall(r"learner (\d+) was lost", self.text())}
        return [n for n in self.processes() if n not in lost and self.steps([n])]

    def steps(self, learners: list[int]) -> int:
        """Minibatches that these learners have trained so far."""
        logs = [self.out / "logs" / f"learner-{number}.log" for number in learners]
        return sum(log.read_text().count('"trained"') for log in logs if log.exists())

    def rate(self, learners: list[int]) -> float:
        """Minibatches a second, over one window."""
        began, before = time.monotonic(), self.steps(learners)
        time.sleep(WINDOW_S)
        return (self.steps(learners) - before) / (time.monotonic() - began)

    def wait_for(self, learners: int) -> None:
        """Until so many train."""
        deadline = time.monotonic() + 120
        while len(self.living()) < learners:
            if self.process.poll() is not None or time.monotonic() > deadline:
                sys.exit(f"the run has ended, or does not begin:\n{self.text()}")
            time.sleep(0.2)

    def close(self) -> None:
        """Ends it."""
        self.process.send_signal(signal.SIGINT)
        self.process.wait(60)
        self._output.close()


def measure(run: Run, learners: int, timeout: float) -> float:
    """One kill: the survivors' rate after it, over that before it."""
    run.wait_for(learners)
    *survivors, victim = run.living()
    before = run.rate(survivors)
    os.kill(run.processes()[victim], signal.SIGKILL)
    time.sleep(timeout)
    return run.rate(survivors) / before


def make_data(path: Path) -> None:
    """Enough frames for any run."""
    synthesise(
        path,
        speakers=20,
        utterances_per_speaker=20,
        frames_per_utterance=240,
        states=100,
        dimension=40,
        seed=1,
        noise=1.0,
    )


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--strategies", default="averaging-static,averaging,gossip-random,server")
    parser.add_argument("--learners", type=int, default=3)
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--timeout", type=float, default=10.0, help="timeout_s of the runs")
    parser.add_argument("--pace", type=float, default=0.02, help="seconds a step, at least")
    options = parser.parse_args()
    given = (options.learners, options.timeout, options.pace)
    cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False}
    )
    for _ in range(options.learners - 1):
        cluster.add_node(num_cpus=1)
    with tempfile.TemporaryDirectory(prefix="unisono-") as folder:
        try:
            make_data(Path(folder) / "prep")
            for way in options.strategies.split(","):
                run = Run(Path(folder), cluster.address, way, *given)
                try:
                    ratios = [
                        measure(run, options.learners, options.timeout)
                        for _ in range(options.kills)
                    ]
                finally:
                    run.close()
                shown = ", ".join(f"{ratio:.2f}" for ratio in ratios)
                print(f"{way:16} {statistics.median(ratios):.2f}   ({shown})", flush=True)
        finally:
            cluster.shutdown()


if __name__ == "__main__":
    main()
