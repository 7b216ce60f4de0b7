"""Ranks of another launcher find each other, before there is a fabric between them.

They meet in a store of PyTorch: the one that its process groups begin with (MASTER_ADDR and
MASTER_PORT), or one of rank 0 that MPI has told them of.
"""

from __future__ import annotations

import json
import secrets
from datetime import timedelta
from itertools import count
from typing import Any

from unisono.errors import UserError
from unisono.fabric.network.endpoints import SocketAddress, address_of, machine, route_to
from unisono.learner.placement import CREDENTIALS
from unisono.learner.ranks import Rank
from unisono.learner.stores import PATIENCE, find_store

_TURN = timedelta(seconds=1)
_meetings = count()


class Meeting:
    """The ranks of one attempt find each other in the launcher's store.

    The store outlives an attempt, so what an earlier one has left there must not be believed: each
    rank says a word that is new, and is told under that word alone.
    """

    def __init__(self, rank: Rank, interface: str) -> None:
        rank.check()
        self._interface = address_of(interface) if interface else ""
        self._rank = rank
        found = find_store(rank, self._interface)
        self._store = found.store
        self.credentials = found.credentials
        """Those that all ranks have already; they never go through the store."""
        self._prefix = f"unisono/{next(_meetings)}"  # each Learner of a process is a run of its own
        self._word = secrets.token_hex(8)
        here = {"word": self._word, "machine": machine()}
        if not rank.one_machine and found.place is not None:
            here["address"] = self._interface or route_to(found.place)
        self._store.set(f"{self._prefix}/here/{rank.number}", json.dumps(here))

    def address(self) -> str:
        """Rank 0: the address that the other machines reach; by the route to one of them."""
        all_here = self._all()
        other = next((here for here in all_here if here["machine"] != machine()), all_here[-1])
        return self._interface or route_to(SocketAddress(other["address"], 1))

    def tell(self, plan: dict[str, str]) -> None:
        """Rank 0: tells all the others, and waits until they have heard it."""
        if self.credentials:
            plan = {key: value for key, value in plan.items() if key != "credentials"}
        for _ in range(round(PATIENCE / _TURN)):
            others = [here["word"] for here in self._all()[1:]]
            for word in others:
                self._store.set(f"{self._prefix}/plan/{word}", json.dumps(plan))
            try:
                if others:
                    self._store.wait([f"{self._prefix}/heard/{word}" for word in others], _TURN)
                return
            except RuntimeError:
                continue  # One of them is of this attempt only now.
        raise self._waited_in_vain()

    def hear(self) -> dict[str, str]:
        """The other ranks: what rank 0 says."""
        plan: dict[str, str] = json.loads(self._get(f"plan/{self._word}"))
        self._store.set(f"{self._prefix}/heard/{self._word}", "yes")
        if "error" in plan:
            raise UserError(f"rank 0 cannot begin: {plan['error']}")
        if "credentials" not in plan and not (self.credentials or self._rank.one_machine):
            raise UserError(f"rank 0 has {CREDENTIALS}, and rank {self._rank.number} has not")
        return {"credentials": self.credentials, **plan}

    def _all(self) -> list[dict[str, Any]]:
        return [json.loads(self._get(f"here/{n}")) for n in range(self._rank.count)]

    def _get(self, key: str) -> bytes:
        try:
            return bytes(self._store.get(f"{self._prefix}/{key}"))
        except RuntimeError:
            raise self._waited_in_vain() from None

    def _waited_in_vain(self) -> UserError:
        waited = f"{PATIENCE.total_seconds():g} s"
        return UserError(
            f"rank {self._rank.number} has waited {waited} for the others: see what they say"
        )
