"""When a learner that died is replaced: after growing pauses, and not for ever."""

from __future__ import annotations

from unisono.launch.respawn import LONGEST_PAUSE_S, MOST, QUIET_S, Respawn


def test_pauses_grow_and_end() -> None:
    respawn, now = Respawn(), 100.0
    pauses = []
    for _ in range(MOST):
        pauses.append(respawn.pause(now))
        now += 5.0
    assert pauses[:7] == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, LONGEST_PAUSE_S]
    assert pauses[7:] == [LONGEST_PAUSE_S] * (MOST - 7)
    assert respawn.pause(now) is None and respawn.pause(now + QUIET_S) is None


def test_a_quiet_time_is_a_new_beginning() -> None:
    respawn = Respawn()
    assert [respawn.pause(0.0), respawn.pause(1.0)] == [1.0, 2.0]
    assert respawn.pause(1.0 + QUIET_S + 1) == 1.0
    for when in range(MOST - 1):
        assert respawn.pause(QUIET_S + 3 + when)
    assert respawn.pause(QUIET_S + 20) is None
    assert respawn.pause(2 * QUIET_S + 21) == 1.0
