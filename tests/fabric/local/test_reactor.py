"""The thread that waits on sockets."""

from __future__ import annotations

import threading
import time

import pytest

from unisono.fabric.local.reactor import Reactor


def test_commands_run_in_order_in_one_thread() -> None:
    reactor = Reactor(lambda error: None)
    seen: list[int] = []
    threads: set[str] = set()
    for n in range(100):
        reactor.call(lambda n=n: (seen.append(n), threads.add(threading.current_thread().name)))  # type: ignore[misc,func-returns-value]
    reactor.stop()
    assert seen == list(range(100))
    assert threads == {"unisono-io"}


def test_run_waits_also_for_a_command_that_fails_and_inside_itself() -> None:
    errors: list[BaseException] = []
    reactor = Reactor(errors.append)
    seen: list[str] = []

    def outer() -> None:
        reactor.run(lambda: seen.append("inner"))
        raise ValueError("a bug")

    assert reactor.run(outer)
    assert seen == ["inner"]
    assert reactor.run(lambda: seen.append("later"))
    assert [str(error) for error in errors] == ["a bug"]
    reactor.stop()


def test_a_stopped_reactor_refuses_commands() -> None:
    reactor = Reactor(lambda error: None)
    reactor.stop()
    reactor.stop()
    assert not reactor.call(lambda: None)
    assert not reactor.run(lambda: None)


def test_a_command_that_meets_the_stop_is_run_or_refused() -> None:
    """Nobody waits for a command that was accepted when the thread was already over."""

    def use(reactor: Reactor) -> None:
        while reactor.run(lambda: None):
            pass

    for _ in range(300):
        reactor = Reactor(lambda error: None)
        users = [threading.Thread(target=use, args=(reactor,), daemon=True) for _ in range(3)]
        for user in users:
            user.start()
        reactor.stop()
        for user in users:
            user.join(20.0)
        assert not any(user.is_alive() for user in users)


@pytest.mark.parametrize("pause", [0.0, 0.1])
def test_timers_fire_in_their_order(pause: float) -> None:
    """Also when the thread was held up, and all are due at once."""
    reactor = Reactor(lambda error: None)
    seen: list[str] = []
    done = threading.Event()

    def begin() -> None:
        reactor.call_later(0.06, lambda: (seen.append("late"), done.set()))  # type: ignore[func-returns-value]
        reactor.call_later(0.02, lambda: seen.append("early"))
        time.sleep(pause)

    reactor.call(begin)
    assert done.wait(60)
    reactor.stop()
    assert seen == ["early", "late"]
