"""A run on several Ray nodes: actors and nodes are killed, stopped, and join."""

from __future__ import annotations

import os
import random
import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from support.commands import CONTENDERS, Command, check_coverage, lines_of, summary_of, until
from support.ray_hooks import environment
from support.ray_nodes import RayNodes, learners_of
from support.soak import SOAK
from unisono.runs.directory import RunDirectory

Start = Callable[..., Command]

pytestmark = [pytest.mark.long, pytest.mark.timeout(1500)]

EVERY_WAY = CONTENDERS | {
    "allreduce": ["allreduce"],
    "delay-by-one": ["delay-by-one"],
    "gossip-fixed": ["gossip-fixed", "--set", "strategy.every=512"],
    "averaged-server": ["averaged-server", "--epochs", "1"],
}
PACE_S = 0.02
RANDOM_KILLS = 10 * SOAK
"""With each strategy."""


@pytest.fixture(scope="module")
def nodes() -> Iterator[RayNodes]:
    nodes = RayNodes(3)
    yield nodes
    nodes.close()


def start_training(
    start: Start,
    nodes: RayNodes,
    prep: Path,
    out: Path,
    way: str,
    *more: object,
    pace_s: float = PACE_S,
    kill: str = "",
    learner: int | None = None,
) -> Command:
    plan = environment(pace_s=pace_s, kill=kill, learner=learner, marks=out.parent)
    return start(
        "train", prep, "--out", out, "--cluster", nodes.address, "--strategy", *EVERY_WAY[way],
        "--set", "minibatch=64", "--set", "network.hidden=[128]", "--set", "threads=1",
        "--set", "timeout_s=20", "--set", "validation.enabled=false", *more, environment=plan,
    )  # fmt: skip


def trains(out: Path, number: int, lines: int = 20) -> bool:
    return lines_of(out / "logs" / f"learner-{number}.log") > lines


def until_run(command: Command, condition: Callable[[], bool], what: str) -> None:
    """Until something is so while the run lasts."""

    def holds() -> bool:
        assert command.process.poll() is None, f"over before {what}:\n{command.output()}"
        return condition()

    until(holds, 400.0, what=f"{what}:\n{command.output()}")


def check(command: Command, out: Path) -> dict[str, object]:
    """The run has ended, and every minibatch counts once."""
    assert command.wait(600) == 0, command.output()
    summary = summary_of(out)
    assert summary["ended"] == "finished"
    check_coverage(out, summary)
    return summary


@pytest.mark.parametrize("way", EVERY_WAY)
def test_a_run_over_nodes(
    start: Start, nodes: RayNodes, prep: Path, tmp_path: Path, way: str
) -> None:
    out = tmp_path / "run"
    command = start_training(start, nodes, prep, out, way, "--learners", 3, pace_s=0.0)
    summary = check(command, out)
    assert (summary["learners_lost"], summary["learners_joined"]) == (0, 0)
    assert len(learners_of(command)) == 3


@pytest.mark.parametrize("way", CONTENDERS)
def test_all_kinds_of_faults(
    start: Start, nodes: RayNodes, prep: Path, tmp_path: Path, way: str
) -> None:
    """A learner, the coordinator and a node are killed, a node joins, a learner is stopped."""
    out = tmp_path / "run"
    command = start_training(
        start, nodes, prep, out, way, "--learners", "2:4", "--epochs", 30, "--set", "timeout_s=5"
    )
    metrics = out / "metrics.jsonl"
    until_run(command, lambda: all(trains(out, n) for n in (0, 1)), "two learners train")
    three = lambda: sum(trains(out, n) for n in range(4)) >= 3  # noqa: E731
    until_run(command, three, "three learners train")
    first = sorted(learners_of(command).items())[:3]

    os.kill(first[1][1], signal.SIGKILL)
    newcomers = lambda: [n for n in learners_of(command) if n not in dict(first)]  # noqa: E731
    until_run(command, lambda: any(trains(out, n) for n in newcomers()), "a newcomer trains")

    coordinator = nodes.coordinator()
    os.kill(coordinator, signal.SIGKILL)
    until_run(command, lambda: nodes.coordinator() != coordinator, "the coordinator comes back")
    before = lines_of(out / "logs" / f"learner-{first[0][0]}.log")
    until_run(command, lambda: trains(out, first[0][0], before + 50), "the learners go on")

    known = len(newcomers())
    lost = metrics.read_text().count('"event":"lost"')
    nodes.join()
    try:
        until_run(
            command,
            lambda: len(newcomers()) > known and trains(out, newcomers()[-1]),
            "the node that has joined trains",
        )
    finally:
        nodes.remove()
    until_run(
        command, lambda: metrics.read_text().count('"event":"lost"') > lost, "the node is lost"
    )

    log = out / "logs" / f"learner-{first[2][0]}.log"
    os.kill(first[2][1], signal.SIGSTOP)
    until_run(
        command,
        lambda: any(
            (e["event"], e["learner"]) == ("lost", first[2][0])
            for e in RunDirectory(out).read_metrics()
        ),
        "the stopped one is declared dead",
    )
    os.kill(first[2][1], signal.SIGCONT)
    rejoins = lambda: f'"who":"learner-{first[2][0]}.0#1"' in log.read_text()  # noqa: E731
    until_run(command, rejoins, "the stopped one rejoins")
    (tmp_path / "enough").touch()
    summary = check(command, out)
    lost, joined = summary["learners_lost"], summary["learners_joined"]
    assert isinstance(lost, int) and isinstance(joined, int)
    # On a busy machine 5 s may pass for a learner that nobody stopped.
    assert lost >= 3 and joined >= 4, command.output()
    assert re.search(r"lost \((its node has died|it cannot be reached)\)", command.output())
    assert "lost (its worker process has died)" in command.output()


MOMENTS = [
    ("join", 2, "static"),
    ("join", 2, "gossip"),
    ("welcome", None, "static"),
    ("welcome", None, "dynamic"),
    ("welcome", None, "gossip"),
    ("checkpoint", 1, "static"),
    ("checkpoint", 1, "gossip"),
    ("exchange", 1, "gossip"),
    ("collective", 1, "static"),
    ("collective", 1, "dynamic"),
    ("push", 1, "server"),
]


@pytest.mark.parametrize(("moment", "learner", "way"), MOMENTS)
def test_a_death_at_the_worst_moment(
    start: Start,
    nodes: RayNodes,
    prep: Path,
    tmp_path: Path,
    moment: str,
    learner: int | None,
    way: str,
) -> None:
    out = tmp_path / "run"
    command = start_training(
        start, nodes, prep, out, way, "--learners", "2:4", "--epochs", 12,
        kill=moment, learner=learner,
    )  # fmt: skip
    killed, joins = tmp_path / "killed", False
    if moment == "welcome":  # learners that begin alike need none: one comes late, or is made to
        two_train = lambda: all(trains(out, n) for n in (0, 1))  # noqa: E731
        until_run(command, lambda: killed.exists() or two_train(), "two learners train")
        joins = not killed.exists()
    if joins:
        nodes.join()
    try:
        summary = check(command, out)
    finally:
        if joins:
            nodes.remove()
    assert killed.exists(), "the moment never came"
    assert "was lost (its worker process has died)" in command.output()
    assert summary["learners_lost"] == 1


def test_the_coordinator_dies_while_a_learner_does(
    start: Start, nodes: RayNodes, prep: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    command = start_training(
        start, nodes, prep, out, "dynamic", "--learners", 3, "--epochs", 12, kill="coordinator"
    )
    until_run(command, lambda: all(trains(out, n) for n in range(3)), "three learners train")
    os.kill(learners_of(command)[1], signal.SIGKILL)
    until_run(command, (tmp_path / "killed").exists, "the coordinator dies")
    summary = check(command, out)
    assert summary["learners_lost"] == 1


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("way", ["dynamic", "gossip"])
def test_random_kills(start: Start, nodes: RayNodes, prep: Path, tmp_path: Path, way: str) -> None:
    """Learners other than the eldest, and now and then the coordinator, at random instants.

    A coordinator that has come back finds who died meanwhile by their silence, so it must live for
    longer than that.
    """
    timeout = 5.0
    source = random.Random(way)
    kills, runs, spared = 0, 0, 0.0
    while kills < RANDOM_KILLS:
        out = tmp_path / f"run-{runs}"
        command = start_training(
            start, nodes, prep, out, way, "--learners", 3, "--epochs", 12, "--seed", runs,
            "--set", f"timeout_s={timeout}",
        )  # fmt: skip
        runs += 1
        until_run(command, lambda out=out: trains(out, 0), "learner 0 trains")
        while command.process.poll() is None:
            time.sleep(source.uniform(0.0, 3.0))
            alive = nodes.processes("ray::LearnerActor.run")
            victims = [pid for _, pid in sorted(learners_of(command).items()) if pid in alive][1:]
            if source.random() < 0.2 and time.monotonic() > spared:
                victims = nodes.processes("ray::CoordinatorActor.serve")
                spared = time.monotonic() + 6 * timeout
            if victims and command.process.poll() is None:
                with suppress(ProcessLookupError):
                    os.kill(source.choice(victims), signal.SIGKILL)
                    kills += 1
        check(command, out)
