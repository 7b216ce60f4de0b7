"""Who is replaced, avoided and given up, with an engine that does as it is told."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from unisono.errors import UserError
from unisono.launch import ray_cluster
from unisono.launch.ray_actors import CoordinatorActor, Report, ReportKind
from unisono.launch.ray_cluster import MOST_STILLBORN, ClusterRun
from unisono.launch.ray_engine import NODE_LABEL
from unisono.launch.ray_output import print_end
from unisono.launch.respawn import LONGEST_PAUSE_S, MOST


class Death(Exception):  # noqa: N818
    pass


class Bug(Exception):  # noqa: N818
    pass


OVER = {"over": True, "failure": None, "lost": [], "joined": 2}
READY = Report(ReportKind.READY, "", "alpha", "node-1", 7)
FINISHED = Report(ReportKind.FINISHED, "", "alpha", "node-1", 7)
DEATH = Death("because its worker process has died. Exit type: ...")
IDLE_S = 2 * LONGEST_PAUSE_S
Part = list[Any]
"""What a learner's two calls come to: reports or exceptions; shorter: it goes no further."""


@dataclass
class Engine:
    """In place of Ray: learner n does as ``parts[n]`` says.

    The coordinator ends when nothing has happened for ``IDLE_S`` seconds of the engine's clock.
    """

    parts: Callable[[int], Part]
    told: Any = field(default_factory=lambda: dict(OVER))
    coordinator_first: bool = False
    """Its end is heard of before the ends of the learners."""
    nodes_there: tuple[str, ...] = ("node-1", "node-2")
    clock: float = 0.0
    killed: list[int] = field(default_factory=list)
    started: list[float] = field(default_factory=list)
    """When each learner was."""
    options_of: list[dict[str, Any]] = field(default_factory=list)
    exceptions: ClassVar[Any] = SimpleNamespace(
        RayActorError=Death, RayTaskError=Bug, RayError=Exception
    )
    util: ClassVar[Any] = SimpleNamespace(get_node_ip_address=lambda: "127.0.0.1")
    _events: deque[tuple[str, Any]] = field(default_factory=deque)
    _values: dict[tuple[str, Any], Any] = field(default_factory=dict)
    _count: int = 0
    _last: float = 0.0
    _run: str = ""

    def get_runtime_context(self) -> Any:
        return SimpleNamespace(get_node_id=lambda: "node-1")

    def nodes(self) -> list[dict[str, Any]]:
        return [
            {
                "NodeID": name,
                "Alive": True,
                "Resources": {"CPU": 1.0},
                "NodeManagerHostname": name,
            }
            for name in self.nodes_there
        ]

    def remote(self, kind: type) -> Any:
        def start(options: dict[str, Any], arguments: tuple[Any, ...]) -> Any:
            if kind is CoordinatorActor:
                self._values["endpoint", 0] = "tcp:127.0.0.1:1"
                self._values["served", 0] = self.told
                calls = {"endpoint": ("endpoint", 0), "serve": ("served", 0)}
                return SimpleNamespace(number=-1, **{n: _call(r) for n, r in calls.items()})
            number, self._count = self._count, self._count + 1
            self._run = arguments[-1]
            self.options_of.append(options)
            self.started.append(self.clock)
            for name, value in zip(("prepared", "ended"), self.parts(number), strict=False):
                self._values[name, number] = value
                self._events.append((name, number))
            prepare, run = _call(("prepared", number)), _call(("ended", number))
            return SimpleNamespace(number=number, prepare=prepare, run=run)

        return SimpleNamespace(
            options=lambda **options: SimpleNamespace(
                remote=lambda *arguments: start(options, arguments)
            )
        )

    def wait(
        self, references: list[Any], num_returns: int = 1, timeout: float = 0.0
    ) -> tuple[list[Any], list[Any]]:
        served = [("served", 0)]
        found = [event for event in self._events if event in references][:num_returns]
        hurries = self.coordinator_first and not any(name == "prepared" for name, _ in self._events)
        is_idle = self.clock - self._last > IDLE_S
        if served[0] in references and (hurries or (is_idle and not found)):
            return served, []
        for event in found:
            self._events.remove(event)
            self._last = self.clock
        self.clock += 0.0 if found else timeout
        return found, []

    def get(self, reference: Any) -> Any:
        value = self._values[reference]
        if isinstance(value, Exception):
            raise value
        name, number = reference
        if name == "ended":
            print_end(self._run, number)
        return value

    def kill(self, actor: Any) -> None:
        self.killed.append(actor.number)


def _call(reference: Any) -> Any:
    return SimpleNamespace(remote=lambda: reference)


def run(
    engine: Engine, least: int = 2, most: int = 2, *, respawn: bool = True
) -> tuple[Any, list[str]]:
    lines: list[str] = []
    whole = ClusterRun(
        ray=engine,
        work=SimpleNamespace(),  # type: ignore[arg-type]
        least=least,
        most=most,
        respawn=respawn,
        say=lines.append,
        clock=lambda: engine.clock,
    )
    return whole.run(), lines


def test_all_finish_and_all_actors_go() -> None:
    engine = Engine(lambda number: [READY, FINISHED])
    outcome, _ = run(engine)
    assert not outcome.failed and outcome.coordinator == OVER
    assert sorted(engine.killed) == [-1, 0, 1]


def test_who_has_no_place_is_not_waited_for() -> None:
    engine = Engine(lambda number: [READY, FINISHED] if number < 2 else [])
    outcome, _ = run(engine, most=5)
    assert not outcome.failed
    assert sorted(engine.killed) == [-1, 0, 1, 2, 3, 4]


def test_the_dead_and_the_cut_off_are_replaced_under_new_numbers() -> None:
    fates: dict[int, Part] = {
        0: [READY, Death("because its worker process has died. Exit type: ...")],
        1: [READY, Report(ReportKind.CUT_OFF, "silence", "alpha", "node-1")],
        2: [READY],
    }
    engine = Engine(lambda number: fates.get(number, [READY, FINISHED]))
    outcome, lines = run(engine)
    assert not outcome.failed
    assert outcome.lost == ["learner 0", "learner 1"]
    lost = "learner 0 was lost (its worker process has died); the others go on; learner 2 replaces"
    assert f"{lost} it in 1 s" in lines
    cut_off = "learner 1 was cut off (silence); the others go on; learner 3 replaces it in 2 s"
    assert cut_off in lines
    assert len(engine.options_of) == 4


@pytest.mark.parametrize("begun", [True, False])
def test_one_that_dies_again_and_again_is_replaced_after_pauses_and_up_to_a_limit(
    begun: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_cluster, "has_begun", lambda directory, least: begun)

    def parts(number: int) -> Part:
        assert number < 50, "started again without end"
        return [READY, DEATH] if number else [READY]

    engine = Engine(parts)
    outcome, lines = run(engine)
    pauses = [after - before for before, after in pairwise(engine.started[1:])]
    wanted = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, *[LONGEST_PAUSE_S] * 4]
    assert pauses == pytest.approx(wanted, abs=1.0)
    last = f"learner {MOST + 1} was lost (its worker process has died); the others go on"
    assert lines[-1] == f"{last}; after {MOST} replacements it is not replaced"
    assert outcome.failed is not begun
    assert outcome.reason == ("" if begun else "1 of 2 learners are left, too few to begin")


def test_learners_of_a_machine_that_has_gone_are_replaced_at_once() -> None:
    engine = Engine(
        lambda number: [READY, Death("because its node has died.")] if number < 12 else [],
        nodes_there=("node-2",),
    )
    run(engine, most=12)
    assert len(engine.started) == 24 and engine.started[-1] < 1.0


def test_without_replacements_a_run_that_cannot_begin_ends() -> None:
    outcome, lines = run(
        Engine(lambda number: [READY, DEATH] if number else [READY]), respawn=False
    )
    assert outcome.reason == "1 of 2 learners are left, too few to begin"
    assert lines[-1] == "learner 1 was lost (its worker process has died); the others go on"


def test_those_that_die_before_they_are_ready_are_tried_a_few_times() -> None:
    engine = Engine(lambda number: [Death("because there is no memory")])
    outcome, _ = run(engine)
    assert outcome.failed
    assert (
        outcome.reason
        == f"{MOST_STILLBORN} learners died before they were ready: there is no memory"
    )


def test_an_unfit_machine_is_told_of_once_and_avoided() -> None:
    unfit = Report(ReportKind.UNFIT, "no PREP", "beta", "node-2")
    engine = Engine(lambda number: [unfit] if number in (0, 1) else [READY, FINISHED])
    outcome, lines = run(engine)
    assert not outcome.failed
    assert lines.count("no learner on beta: no PREP") == 1
    assert [o["label_selector"] for o in engine.options_of[2:]] == [{NODE_LABEL: "!in(node-2)"}] * 2


def test_no_machine_is_fit() -> None:
    reports = [Report(ReportKind.UNFIT, "no PREP", name, name) for name in ("node-1", "node-2")]
    outcome, _ = run(Engine(lambda number: [reports[number % 2]]))
    assert outcome.failed
    assert outcome.reason == "no machine can do the work; node-2: no PREP"


@pytest.mark.parametrize("coordinator_first", [False, True])
def test_a_failure_ends_the_run(coordinator_first: bool) -> None:
    failed = Report(ReportKind.FAILED, "Traceback ...", "alpha", "node-1")
    told = {**OVER, "failure": {"who": "learner-1", "cause": "failed", "text": "Traceback ..."}}
    stopped = Report(ReportKind.ABANDONED, "another one failed", "alpha", "node-1")
    parts = lambda number: [READY, failed if number else stopped]  # noqa: E731
    engine = Engine(parts, told, coordinator_first=coordinator_first)
    outcome, lines = run(engine)
    assert outcome.failed
    assert outcome.reason == "learner 1 failed on alpha"
    assert lines.count("Traceback ...") == 1
    assert sorted(engine.killed) == [-1, 0, 1]


def test_what_the_coordinator_says_counts() -> None:
    told = {
        **OVER,
        "over": False,
        "failure": {"who": "coordinator", "cause": "model-lost", "text": "no model left"},
    }
    outcome, _ = run(Engine(lambda number: [READY], told))
    assert outcome.failed and outcome.reason == "no model left"
    with pytest.raises(UserError, match="the coordinator ended"):
        run(Engine(lambda number: [READY], Bug("a bug")))
