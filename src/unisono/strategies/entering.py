"""How a learner of a drawn strategy gets in: with the state of one that is in already."""

from __future__ import annotations

from collections.abc import Callable

from unisono.coordinator.client import Client
from unisono.fabric import Address, Gone


def enter_drawn(
    client: Client, receive_state: Callable[[Address], None], rounds: Callable[[], int]
) -> bool:
    """Asks for a sponsor until one has handed over a state that is not out of date already.

    Returns False if the run is over. The first learner begins with what it has.
    """
    while True:
        answer = client.call("enter", "entered")
        if answer["kind"] == "over":
            return False
        if answer["sponsor"] is None:
            return True
        try:
            receive_state(Address.parse(answer["sponsor"]))
        except Gone:
            continue
        answer = client.call("welcomed", "entered", rounds=rounds())
        if answer["kind"] == "in":
            return True
