"""Child processes that are started now, or later."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from unisono.fabric.local.child_processes import ChildExit, ChildProcesses


@pytest.fixture
def children() -> Iterator[ChildProcesses]:
    made = ChildProcesses()
    yield made
    made.stop(1.0)


def test_one_that_is_to_start_later_counts_as_running_until_it_has_ended(
    children: ChildProcesses,
) -> None:
    began = children.now()
    children.start_later(0.3, "late", ["sh", "-c", "exit 3"], {})
    assert children.running == ["late"] and children.started == []
    assert children.wait(0.05) == [] and children.started == []
    assert children.wait() == [ChildExit("late", 3)]
    assert children.now() - began >= 0.3
    assert children.running == []


def test_the_end_of_another_is_told_while_one_waits(children: ChildProcesses) -> None:
    children.start_later(100.0, "late", ["sleep", "100"], {})
    children.start("now", ["true"], {})
    assert children.wait() == [ChildExit("now", 0)]
    assert children.running == ["late"]
    children.forget_waiting()
    assert children.running == []


def test_what_waits_is_never_started_after_a_stop(children: ChildProcesses) -> None:
    children.start_later(0.0, "late", ["sleep", "100"], {})
    children.stop(1.0)
    assert children.wait(0.1) == [] and children.running == []
