"""How a learner joins a run with dynamic sharding: with the state of a member."""

from __future__ import annotations

from collections.abc import Callable

from unisono.coordinator.client import Client
from unisono.coordinator.messages import Complete, Enter, Entered, StateReceived
from unisono.fabric import Address, Gone


def join_dynamic(
    client: Client, receive_state: Callable[[Address], None], rounds: Callable[[], int]
) -> bool:
    """Asks for donors until one has sent a state that is still current; False: the run is over.

    The first learner begins with its own state.
    """
    while True:
        answer = client.call(Enter(), "entered")
        if isinstance(answer, Complete):
            return False
        if answer.donor is None:
            return True
        try:
            receive_state(answer.donor)
        except Gone:
            continue
        if isinstance(client.call(StateReceived(rounds()), "entered"), Entered):
            return True
