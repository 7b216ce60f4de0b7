"""Graphs of transcripts: HMM states, pronunciation variants, optional silence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from unisono.speech.alignment.decision_tree import StateTying
from unisono.speech.alignment.topology import EXIT, Topology
from unisono.speech.corpus.lexicon import SILENCE, Lexicon

Ints = NDArray[np.int64]

_OUTSIDE = 0
"""Beyond either end of an utterance lies silence, phone 0."""
_GAP = -1


@dataclass(frozen=True, kw_only=True, eq=False)
class TranscriptGraph:
    """A graph of S nodes, each a state of one phone at one point of the transcript.

    Edges lead from node to node, one frame each; leaving the transcript is an edge without an
    end. What an edge costs is a move of the topology plus what the lexicon says (silence here,
    or none), so that the graph stays as it is while the model learns.

    Attributes:
        state: S: the state of each node, as the tying numbers them.
        phone: S: its phone.
        local: S: the state's number within the phone.
        instance: S: which phone of the transcript it belongs to, numbered through.
        gap: For each instance, whether it is optional silence.
        word: For each instance, the position in the transcript of its word;
            -1 for optional silence.
        initial: The nodes in which a path may begin.
        initial_silence: Whether each of them is optional silence.
        source: The node that each edge leaves.
        target: The node that it leads to; -1: the end of the transcript.
        move: The column of the topology's moves that it takes.
        silence: 1: it leads into optional silence, -1: it passes it by, 0: neither.
    """

    state: Ints
    phone: Ints
    local: Ints
    instance: Ints
    gap: NDArray[np.bool_]
    word: Ints
    initial: Ints
    initial_silence: NDArray[np.bool_]
    source: Ints
    target: Ints
    move: Ints
    silence: Ints


@dataclass(eq=False)
class _Phones:
    """A transcript as a graph of phones; each link says whether it takes optional silence."""

    phone: list[int] = field(default_factory=list)
    word: list[int] = field(default_factory=list)
    before: list[dict[int, int]] = field(default_factory=list)
    ends: dict[int, int] = field(default_factory=dict)

    def add(self, phone: int, before: dict[int, int], word: int) -> int:
        """Adds a node of a word (-1: optional silence) after others (-1: at the beginning)."""
        self.phone.append(phone)
        self.word.append(word)
        self.before.append(before)
        return len(self.phone) - 1


def _phone_graph(words: Sequence[str], lexicon: Lexicon, topology: Topology) -> _Phones:
    numbers = {name: number for number, name in enumerate(topology.phones)}
    phones = _Phones()
    lasts = [-1]
    for at, word in enumerate(words):
        quiet = phones.add(numbers[SILENCE], dict.fromkeys(lasts, 1), _GAP)
        ways = {**dict.fromkeys(lasts, -1), quiet: 0}
        lasts = []
        for variant in lexicon.entries[word]:
            before = ways
            for name in variant:
                node = phones.add(numbers[name], before, at)
                before = {node: 0}
            lasts.append(node)
    quiet = phones.add(numbers[SILENCE], dict.fromkeys(lasts, 1), _GAP)
    phones.ends = {**dict.fromkeys(lasts, -1), quiet: 0}
    return phones


class _Copies:
    """Each node once for each pair of neighbours that its states depend on."""

    def __init__(self, phones: _Phones, tying: StateTying) -> None:
        self._phones = phones
        after: list[set[int]] = [set() for _ in phones.phone]
        for node, before in enumerate(phones.before):
            for earlier in before:
                if earlier >= 0:
                    after[earlier].add(phones.phone[node])
        for node in phones.ends:
            after[node].add(_OUTSIDE)
        self.of: list[list[int]] = []
        self.node: list[int] = []
        self.left: list[int | None] = []
        self.right: list[int | None] = []
        for node, phone in enumerate(phones.phone):
            pairs: list[tuple[int | None, int | None]] = [(None, None)]
            if not tying.context_independent(phone):
                lefts = {self.name(earlier) for earlier in phones.before[node]}
                pairs = [(a, b) for a in sorted(lefts) for b in sorted(after[node])]
            self.of.append(list(range(len(self.node), len(self.node) + len(pairs))))
            for left, right in pairs:
                self.node.append(node)
                self.left.append(left)
                self.right.append(right)

    def name(self, node: int) -> int:
        """The phone of a node; silence at the beginning."""
        return _OUTSIDE if node < 0 else self._phones.phone[node]

    def follow(self, earlier: int, copy: int) -> bool:
        """Whether two copies of linked nodes agree about each other."""
        right, left = self.right[earlier], self.left[copy]
        phone = self._phones.phone[self.node[copy]]
        before = self._phones.phone[self.node[earlier]]
        return right in (None, phone) and left in (None, before)

    def outer(self, node: int, sides: list[int | None]) -> Iterator[int]:
        """The copies of a node that have nothing on one side."""
        return (copy for copy in self.of[node] if sides[copy] in (None, _OUTSIDE))


def build_transcript_graph(
    words: Sequence[str], lexicon: Lexicon, topology: Topology, tying: StateTying
) -> TranscriptGraph:
    """Builds the graph of a transcript, with optional silence around each word."""
    phones = _phone_graph(words, lexicon, topology)
    copies = _Copies(phones, tying)
    sizes = [topology.size(phones.phone[node]) for node in copies.node]
    first = np.cumsum([0, *sizes])
    nodes: list[tuple[int, int, int, int]] = []
    edges: list[tuple[int, int, int, int]] = []
    initial: list[tuple[int, bool]] = []
    for copy, node in enumerate(copies.node):
        phone = phones.phone[node]
        states = tying.states_of(copies.left[copy] or 0, phone, copies.right[copy] or 0)
        nodes += [(state, phone, local, copy) for local, state in enumerate(states)]
        moves = np.argwhere(topology.moves[phone, :, :EXIT] > 0).tolist()
        edges += [(int(first[copy]) + i, int(first[copy]) + j, j, 0) for i, j in moves]
        for earlier, silence in phones.before[node].items():
            if earlier < 0:
                if copies.left[copy] in (None, _OUTSIDE):
                    initial.append((int(first[copy]), phones.word[node] == _GAP))
                continue
            edges += [
                (int(first[other + 1]) - 1, int(first[copy]), EXIT, silence)
                for other in copies.of[earlier]
                if copies.follow(other, copy)
            ]
    for node, silence in phones.ends.items():
        edges += [
            (int(first[copy + 1]) - 1, -1, EXIT, silence)
            for copy in copies.outer(node, copies.right)
        ]
    graphs, linked = np.array(nodes), np.array(edges)
    word = np.array([phones.word[node] for node in copies.node])
    return TranscriptGraph(
        state=graphs[:, 0],
        phone=graphs[:, 1],
        local=graphs[:, 2],
        instance=graphs[:, 3],
        gap=word == _GAP,
        word=word,
        initial=np.array([node for node, _ in initial]),
        initial_silence=np.array([silent for _, silent in initial]),
        source=linked[:, 0],
        target=linked[:, 1],
        move=linked[:, 2],
        silence=linked[:, 3],
    )


def estimate_nodes(words: Sequence[str], lexicon: Lexicon) -> int:
    """About how many nodes the graph of a transcript has with monophones."""
    return sum(8 + 3 * sum(map(len, lexicon.entries[word])) for word in words)


def equal_alignment(
    words: Sequence[str], frames: int, lexicon: Lexicon, topology: Topology
) -> Ints:
    """States for a flat start: silence, the words' first variants, silence, in equal parts.

    Silence is left out where there are fewer frames than states.
    """
    numbers = {name: number for number, name in enumerate(topology.phones)}
    phones_in_order = [phone for word in words for phone in lexicon.entries[word][0]]
    for phones in ([SILENCE, *phones_in_order, SILENCE], phones_in_order):
        states = np.concatenate(
            [np.arange(*topology.first[numbers[name] : numbers[name] + 2]) for name in phones]
        )
        if len(states) <= frames:
            break
    return np.asarray(states[np.arange(frames) * len(states) // frames])
