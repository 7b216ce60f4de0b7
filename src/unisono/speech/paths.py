"""The ways to say a transcript: states in a row, pronunciation variants, optional silence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unisono.speech.lexicon import SILENCE, Lexicon
from unisono.speech.topology import Topology

Ints = NDArray[np.int64]
_LEAVE = 5


@dataclass(frozen=True, kw_only=True, eq=False)
class Paths:
    """A graph of S places, each a state of one phone at one point of the transcript.

    Edges lead from place to place, a frame each; leaving the transcript is an edge without an
    end. What an edge costs is a move of the topology plus what the lexicon says (silence here,
    or none), so that the graph stays as it is while the model learns.

    Attributes:
        state: S: the state of each place.
        phone: S: its phone.
        local: S: the state's number within the phone.
        instance: S: which phone of the transcript it belongs to, numbered through.
        gap: For each instance, whether it is optional silence.
        begin: The places that may come first.
        begin_silent: Whether each of them is optional silence.
        source: The place that each edge leaves.
        target: The place that it leads to; -1: out of the transcript.
        move: The column of the topology's moves that it takes.
        silence: 1: it leads into optional silence, -1: it passes it by, 0: neither.
    """

    state: Ints
    phone: Ints
    local: Ints
    instance: Ints
    gap: NDArray[np.bool_]
    begin: Ints
    begin_silent: NDArray[np.bool_]
    source: Ints
    target: Ints
    move: Ints
    silence: Ints


class _Builder:
    """Lays places and edges one phone at a time."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self.numbers = {name: number for number, name in enumerate(topology.phones)}
        self.places: list[tuple[int, int, int, int]] = []
        self.edges: list[tuple[int, int, int, int]] = []
        self.gap: list[bool] = []

    def add(self, name: str, sources: Sequence[tuple[int, int]], *, gap: bool) -> tuple[int, int]:
        """Adds a phone after some places; returns its first place and the one that leaves it."""
        phone = self.numbers[name]
        first, size = len(self.places), self.topology.size(phone)
        offset = int(self.topology.first[phone])
        moves = self.topology.moves[phone]
        for local in range(size):
            self.places.append((offset + local, phone, local, len(self.gap)))
            for after in range(size):
                if moves[local, after] > 0:
                    self.edges.append((first + local, first + after, after, 0))
        self.gap.append(gap)
        for source, silence in sources:
            if source >= 0:
                self.edges.append((source, first, _LEAVE, silence))
        return first, first + size - 1


def lay_paths(words: Sequence[str], lexicon: Lexicon, topology: Topology) -> Paths:
    """Lays the ways to say some words, with optional silence before, between and after them."""
    builder = _Builder(topology)
    begin: list[tuple[int, bool]] = []
    ends: list[int] = [-1]
    for word in words:
        quiet, leaves = builder.add(SILENCE, [(end, 1) for end in ends], gap=True)
        sources = [(end, -1) for end in ends] + [(leaves, 0)]
        if ends == [-1]:
            begin.append((quiet, True))
        entered: list[int] = []
        next_ends = []
        for variant in lexicon.entries[word]:
            at = sources
            for position, phone in enumerate(variant):
                first, last = builder.add(phone, at, gap=False)
                if position == 0:
                    entered.append(first)
                at = [(last, 0)]
            next_ends.append(at[0][0])
        if ends == [-1]:
            begin += [(place, False) for place in entered]
        ends = next_ends
    _, leaves = builder.add(SILENCE, [(end, 1) for end in ends], gap=True)
    builder.edges += [(end, -1, _LEAVE, -1) for end in ends] + [(leaves, -1, _LEAVE, 0)]
    places, edges = np.array(builder.places), np.array(builder.edges)
    return Paths(
        state=places[:, 0],
        phone=places[:, 1],
        local=places[:, 2],
        instance=places[:, 3],
        gap=np.array(builder.gap),
        begin=np.array([place for place, _ in begin]),
        begin_silent=np.array([silent for _, silent in begin]),
        source=edges[:, 0],
        target=edges[:, 1],
        move=edges[:, 2],
        silence=edges[:, 3],
    )


def equal_states(words: Sequence[str], frames: int, lexicon: Lexicon, topology: Topology) -> Ints:
    """States for a flat start: silence, the words' first variants, silence, in equal parts.

    Silence is left out where there are fewer frames than states.
    """
    numbers = {name: number for number, name in enumerate(topology.phones)}
    said = [phone for word in words for phone in lexicon.entries[word][0]]
    for phones in ([SILENCE, *said, SILENCE], said):
        row = np.concatenate(
            [np.arange(*topology.first[numbers[name] : numbers[name] + 2]) for name in phones]
        )
        if len(row) <= frames:
            break
    return np.asarray(row[np.arange(frames) * len(row) // frames])
