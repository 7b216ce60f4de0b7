"""Ranks that meet: what goes through the store, and what must not."""

from __future__ import annotations

import itertools
import socket
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from torch.distributed import HashStore

from unisono.errors import UserError
from unisono.fabric.network.endpoints import SocketAddress, addresses, first_reached
from unisono.learner import meeting
from unisono.learner.meeting import Meeting
from unisono.learner.ranks import Rank
from unisono.learner.stores import MeetingStore

PLAN = {"coordinator": "tcp:10.0.0.1:7", "credentials": "a private key"}
PLACE = SocketAddress("127.0.0.1", 1)


class Overheard:
    """A store that anybody can read."""

    def __init__(self) -> None:
        self._store = HashStore()
        self.values: list[str] = []

    def set(self, key: str, value: str) -> None:
        self.values.append(value)
        self._store.set(key, value)

    def get(self, key: str) -> bytes:
        return bytes(self._store.get(key))

    def wait(self, keys: list[str], timeout: timedelta) -> None:
        self._store.wait(keys, timeout)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Overheard:
    """Both ranks are in this process, and it is the first meeting of each."""
    monkeypatch.setattr(meeting, "_meetings", itertools.repeat(0))
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "1")
    return Overheard()


def hold(
    monkeypatch: pytest.MonkeyPatch, store: Overheard, known: tuple[str, str]
) -> dict[str, str]:
    """Two ranks meet, each with the credentials that it knows; what rank 1 hears."""

    def find(rank: Rank, interface: str) -> MeetingStore:
        return MeetingStore(store, PLACE, known[rank.number])  # type: ignore[arg-type]

    monkeypatch.setattr(meeting, "find_store", find)
    first, second = (Meeting(Rank(n, 2), "") for n in range(2))
    with ThreadPoolExecutor() as pool:
        told = pool.submit(first.tell, PLAN)
        try:
            return second.hear()
        finally:
            told.result(60)


def test_rank_0_tells_the_others_where_it_is_and_the_credentials(
    monkeypatch: pytest.MonkeyPatch, store: Overheard
) -> None:
    assert hold(monkeypatch, store, ("", "")) == PLAN


def test_credentials_that_all_know_do_not_go_through_the_store(
    monkeypatch: pytest.MonkeyPatch, store: Overheard
) -> None:
    assert hold(monkeypatch, store, ("a private key", "a private key")) == PLAN
    assert not any("private" in value for value in store.values)


def test_credentials_that_only_rank_0_knows_are_asked_for(
    monkeypatch: pytest.MonkeyPatch, store: Overheard
) -> None:
    with pytest.raises(UserError, match="rank 0 has UNISONO_CREDENTIALS, and rank 1 has not"):
        hold(monkeypatch, store, ("a private key", ""))


def test_the_first_address_that_answers_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening, socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))  # it does not listen
        refuses, answers = (SocketAddress(*s.getsockname()) for s in (silent, listening))
        assert first_reached([refuses, answers], 5.0) == answers
        assert first_reached([refuses], 5.0) is None


def test_addresses_for_others_are_no_loopback() -> None:
    found = addresses()
    assert len(found) == len(set(found))
    assert not [a for a in found if a.startswith("127.") or a == "::1"]


def test_rank_0_does_not_wait_for_ever_for_one_that_is_gone(
    monkeypatch: pytest.MonkeyPatch, store: Overheard
) -> None:
    """Rank 1 has said that it is here, and never hears the plan."""
    found = MeetingStore(store, PLACE, "")  # type: ignore[arg-type]
    monkeypatch.setattr(meeting, "find_store", lambda rank, interface: found)
    monkeypatch.setattr(meeting, "PATIENCE", timedelta(seconds=0.4))
    monkeypatch.setattr(meeting, "_TURN", timedelta(seconds=0.1))
    first, _ = (Meeting(Rank(n, 2), "") for n in range(2))
    with pytest.raises(UserError, match=r"rank 0 has waited 0.4 s for the others"):
        first.tell(PLAN)
