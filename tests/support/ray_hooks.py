"""What a test has done inside the processes of a Ray cluster: a pace, and deaths at one moment.

Ray calls ``setup`` in each worker process before anything else; the plan is in the environment.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

PLAN = "UNISONO_TEST_PLAN"
PREP_HERE = "UNISONO_TEST_PREP"
"""On a node that has this in its environment, PREP is another one."""


def environment(
    *,
    pace_s: float = 0.0,
    kill: str = "",
    learner: int | None = None,
    marks: Path | None = None,
    apart: bool = True,
    late: int | None = None,
    prep: Path | None = None,
) -> dict[str, str]:
    """For the command that starts the run: how Ray starts the processes of its actors.

    A step lasts at least ``pace_s``, so that a test has time on any machine, until the file
    ``killed`` or ``enough`` is there. The moment ``kill`` is
    the last one of a process, once in the test: of this ``learner``, or of whoever comes there.
    Processes that are ``apart`` believe to be on different machines, and use the network. The
    learner ``late`` joins when the test has made the file ``go``. With ``prep`` all nodes have
    another PREP.
    """
    plan = {
        "pace_s": pace_s,
        "kill": kill,
        "learner": learner,
        "marks": str(marks),
        "apart": apart,
        "late": late,
    }
    paths = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    variables = {PLAN: json.dumps(plan), "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    if prep is not None:
        variables[PREP_HERE] = str(prep)
    runtime = {"worker_process_setup_hook": "ray_hooks.setup", "env_vars": variables}
    return {"RAY_JOB_CONFIG_JSON_ENV_VAR": json.dumps({"runtime_env": runtime})}


def setup() -> None:
    """Follows the plan."""
    plan = json.loads(os.environ[PLAN])
    if plan["apart"]:
        from unisono.fabric.network import endpoints

        endpoints.machine = lambda: str(os.getpid())
    if plan["pace_s"]:
        from unisono.learner.learner import Learner

        ends = [Path(plan["marks"]) / name for name in ("killed", "enough")]
        pace = lambda *_: any(end.exists() for end in ends) or time.sleep(plan["pace_s"])  # noqa: E731
        _before(Learner, "step", pace)
    if PREP_HERE in os.environ:
        from unisono.launch.learner_job import Prep

        Prep.open = lambda _, original=Prep.open: original(Path(os.environ[PREP_HERE]))
    if plan["late"] is not None:
        from unisono.learner.session import Session

        _before(Session, "enroll", lambda *_: _wait(plan["late"], Path(plan["marks"]) / "go"))
    if plan["kill"]:
        death = functools.partial(_die_once, plan["learner"], Path(plan["marks"]))
        _MOMENTS[plan["kill"]](death)


def _wait(learner: int, mark: Path) -> None:
    while os.environ.get("UNISONO_LEARNER") == str(learner) and not mark.exists():
        time.sleep(0.005)


def _before(owner: Any, name: str, action: Callable[..., object]) -> None:
    original = getattr(owner, name)

    @functools.wraps(original)
    def both(*arguments: Any, **named: Any) -> Any:
        action(*arguments)
        return original(*arguments, **named)

    setattr(owner, name, both)


def _after(owner: Any, name: str, action: Callable[[], object]) -> None:
    original = getattr(owner, name)

    @functools.wraps(original)
    def both(*arguments: Any, **named: Any) -> Any:
        result = original(*arguments, **named)
        action()
        return result

    setattr(owner, name, both)


def _die_once(learner: int | None, marks: Path) -> None:
    if learner is not None and os.environ.get("UNISONO_LEARNER") != str(learner):
        return
    try:
        (marks / "killed").open("x").close()
    except FileExistsError:
        return
    os.kill(os.getpid(), signal.SIGKILL)


def _in_a_join(die: Callable[[], None]) -> None:
    """It is a member, and has not got its state."""
    from unisono.learner.session import Session

    _after(Session, "enroll", die)


def _after_send(die: Callable[[], None], kind: str, *, with_vector: bool = False) -> None:
    """It has sent a message of that kind."""
    from unisono.fabric.local.node import LocalNode

    original = LocalNode.send

    def send(self: Any, to: Any, at: str, body: Any, vector: Any = None, **named: Any) -> None:
        original(self, to, at, body, vector, **named)
        if type(body).__name__ == kind and (vector is not None or not with_vector):
            die()

    LocalNode.send = send  # type: ignore[method-assign]


def _while_it_welcomes(die: Callable[[], None]) -> None:
    """Half of its state has gone to a newcomer."""
    _after_send(die, "StateHead")


def _in_a_checkpoint(die: Callable[[], None]) -> None:
    """Its tensors are on the disk, and the rest of its part is not."""
    from unisono.learner import checkpoint_files

    _after(checkpoint_files, "save_file", die)


def _in_an_exchange(die: Callable[[], None]) -> None:
    """It has given its model in an answer, and has not taken the other's in."""
    _after_send(die, "ModelAnswer")


def _in_a_collective(die: Callable[[], None]) -> None:
    """All have its part, and it has computed the mean of its slice, but nobody has that."""
    from unisono.strategies.engines.collective import Collective

    _after(Collective, "_sum_up", die)


def _in_a_push(die: Callable[[], None]) -> None:
    """One shard has its part of a push, and the others do not."""
    _after_send(die, "PushPiece", with_vector=True)


def _coordinator_with_a_learner(die: Callable[[], None]) -> None:
    """It has heard of a death, and has not written it down."""
    from unisono.coordinator.journal import FileJournal

    def look(_: object, commands: Any) -> None:
        if any(type(command.operation).__name__ == "Lost" for command in commands):
            die()

    _before(FileJournal, "append", look)


_MOMENTS = {
    "join": _in_a_join,
    "welcome": _while_it_welcomes,
    "checkpoint": _in_a_checkpoint,
    "exchange": _in_an_exchange,
    "collective": _in_a_collective,
    "push": _in_a_push,
    "coordinator": _coordinator_with_a_learner,
}
