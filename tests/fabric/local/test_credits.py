"""Credit: the two sides together never let a sender wait for nothing."""

from __future__ import annotations

import random
import threading

import pytest

from unisono.fabric import CREDIT, Full
from unisono.fabric.local.credits import CreditReturns, SendCredits


def can_send(account: SendCredits) -> bool:
    try:
        account.take("x", None)
    except Full:
        return False
    return True


@pytest.mark.parametrize("seed", range(20))
def test_a_sender_is_stopped_exactly_at_the_limit(seed: int) -> None:
    """Any order of sending, arriving and consuming: full means CREDIT unconsumed, in the end."""
    draw = random.Random(seed)
    account, tally = SendCredits(threading.Condition()), CreditReturns()
    on_the_way = waiting = packets = consumed = 0
    for _ in range(2000):
        action = draw.choice(["send", "arrive", "consume", "consume"])
        due = 0
        if action == "send":
            sent = can_send(account)
            if on_the_way == 0:
                assert sent == (waiting < CREDIT)
            on_the_way += sent
        elif action == "arrive" and on_the_way:
            on_the_way -= 1
            waiting += 1
            due = tally.arrive("x")
        elif action == "consume" and waiting:
            waiting -= 1
            consumed += 1
            due = tally.consume("x", at_once=draw.random() < 0.2)
        if due:
            packets += 1
            account.give("x", due)
        assert on_the_way + waiting <= CREDIT
    assert packets < consumed


def test_a_ping_pong_gives_credit_back_four_at_a_time() -> None:
    tally = CreditReturns()
    due = []
    for _ in range(16):
        due += [tally.arrive("x"), tally.consume("x", at_once=False)]
    assert [count for count in due if count] == [CREDIT // 2] * 4


def test_ports_do_not_share() -> None:
    account = SendCredits(threading.Condition())
    for _ in range(CREDIT):
        account.take("x", None)
    account.take("y", None)
    with pytest.raises(Full):
        account.take("x", None)
