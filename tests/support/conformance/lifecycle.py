"""Conformance: activities, cancelling and closing, clocks, locks, and where one may not wait."""

from __future__ import annotations

from collections.abc import Callable

import torch

from support.conformance.messages import Enough
from support.conformance.stage import A, B, Stage, case
from unisono.fabric import CREDIT, Cancelled, Fabric
from unisono.fabric.blocking import BlockingCallError


def cause_of(call: Callable[[], object]) -> BaseException | None:
    """Why a call that must be cancelled was cancelled."""
    try:
        call()
    except Cancelled as cancelled:
        return cancelled.__cause__
    raise AssertionError("a call of a cancelled node came back")


@case(A, B)
def cancelling_ends_every_wait(node: Fabric, stage: Stage) -> None:
    """Those that wait now and those that would wait later; the first reason stays."""
    if node.address == B:
        node.receive("never")
    for _ in range(CREDIT):
        node.send(B, "x", {})
    causes: list[BaseException | None] = []
    waits = (
        lambda: node.receive("never"),
        lambda: node.receive("never", B, timeout=1e6),
        lambda: node.send(B, "x", {}),
        lambda: node.sleep(1e6),
    )
    for number, wait in enumerate(waits):
        node.spawn(f"wait {number}", lambda wait=wait: causes.append(cause_of(wait)))  # type: ignore[misc]
    node.sleep(0.05)
    reason = Enough()
    node.cancel(reason)
    node.cancel(ValueError("a later reason"))
    for wait in waits:
        assert cause_of(wait) is reason
    assert cause_of(lambda: node.send(B, "y", {}, wait=False)) is reason
    node.close()
    assert causes == [reason] * len(waits)
    stage.kill(B)


@case(A)
def an_exception_in_an_activity_cancels_the_node(node: Fabric, stage: Stage) -> None:
    """Whoever waits learns why."""
    reason = Enough("first")

    def fail(error: Exception) -> None:
        node.receive("go")
        raise error

    node.spawn("fails", lambda: fail(reason))
    node.post("go", {})
    assert cause_of(lambda: node.receive("never")) is reason


@case(A)
def closing_waits_for_the_activities(node: Fabric, stage: Stage) -> None:
    """They end with ``Cancelled``, not without a word; what they do then is done after closing."""
    ended: list[str] = []

    def child() -> None:
        try:
            node.sleep(1e6)
        except Cancelled:
            ended.append("child")

    def parent() -> None:
        node.spawn("child", child)
        try:
            node.receive("never")
        except Cancelled:
            ended.append("parent")
            raise

    def brief() -> None:
        ended.append("brief")

    node.spawn("parent", parent)
    node.spawn("brief", brief)
    node.sleep(0.05)
    node.close()
    assert sorted(ended) == ["brief", "child", "parent"]
    node.close()


@case(A)
def nobody_waits_inside_a_mode_of_torch(node: Fabric, stage: Stage) -> None:
    """Blocking calls are refused there; posts are not."""
    refused: list[str] = []

    def try_all(where: str) -> None:
        for call in (
            lambda: node.receive("x", timeout=0.0),
            lambda: node.send(node.address, "x", {}),
            lambda: node.sleep(0.0),
        ):
            try:
                call()
            except BlockingCallError:
                refused.append(where)
        node.post("posted", {})

    with torch.no_grad():
        try_all("no_grad")
    with torch.inference_mode():
        try_all("inference_mode")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        try_all("autocast")
    x = torch.ones(1, requires_grad=True)
    y = x * 2
    y.register_hook(lambda gradient: try_all("hook"))  # type: ignore[no-untyped-call]
    y.sum().backward()  # type: ignore[no-untyped-call]
    modes = ("no_grad", "inference_mode", "autocast", "hook")
    assert refused == [mode for mode in modes for _ in range(3)]
    node.post("x", {})
    try_all("nowhere")
    assert len(refused) == 12
    for _ in range(5):
        node.receive("posted", timeout=0.0)


@case(A)
def the_clock_moves_forward(node: Fabric, stage: Stage) -> None:
    """Sleeping takes at least its time; two sleep at once in the time of one."""
    began = node.now()
    node.sleep(0.0)

    def doze() -> None:
        node.sleep(0.1)
        node.post("done", {"now": node.now()})

    for _ in range(2):
        node.spawn("doze", doze)
    ends = [node.receive("done").body["now"] for _ in range(2)]
    assert all(end - began >= 0.1 for end in ends)
    assert node.compute(lambda: 42, 0.01) == 42
    assert node.now() >= ends[-1]


@case(A)
def a_lock_holds_through_a_wait(node: Fabric, stage: Stage) -> None:
    """One activity at a time, also when it waits inside; and it may enter again."""
    lock = node.lock()
    inside: list[int] = []

    def work(number: int) -> None:
        for _ in range(5):
            with lock, lock:
                inside.append(number)
                node.sleep(0.001)
                assert inside == [number]
                inside.clear()
        node.post("done", {})

    for number in range(3):
        node.spawn("work", lambda number=number: work(number))  # type: ignore[misc]
    for _ in range(3):
        node.receive("done")
