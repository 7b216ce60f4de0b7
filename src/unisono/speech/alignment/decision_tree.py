"""Decision trees that tie the states of triphones, with questions from the data."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import reduce
from typing import Union

import numpy as np
from numpy.typing import NDArray
from pydantic import JsonValue

from unisono.speech.alignment.gmm import VARIANCE_FLOOR, Floats, Frames
from unisono.speech.alignment.topology import MIN_PHONE_FRAMES, Topology

Ints = NDArray[np.int64]
FrameContexts = NDArray[np.int16]
"""Left, phone, right and local state, a row a frame: small, for all frames have one."""
_LEAST_GAIN = 300.0
_FEWEST = 50.0


class Side(str, Enum):
    """Which neighbour a question is about."""

    LEFT = "left"
    RIGHT = "right"


@dataclass(frozen=True)
class Question:
    """A question: is the neighbour on that side one of these phones?"""

    side: Side
    phones: frozenset[int]
    yes: Node
    no: Node


Node = Union[int, Question]  # noqa: UP007 - a recursive alias


@dataclass(frozen=True, kw_only=True)
class StateTying:
    """The number of each state of each phone between each pair of neighbours.

    Attributes:
        trees: For each phone and each of its states, the questions that lead to a number.
        states: How many numbers there are.
    """

    trees: tuple[tuple[Node, ...], ...]
    states: int
    _rows: dict[tuple[int, int, int], tuple[int, ...]] = field(
        default_factory=dict, repr=False, compare=False
    )

    @classmethod
    def monophone(cls, topology: Topology) -> StateTying:
        """Monophones: a number for each state of each phone, whatever its neighbours."""
        first = topology.first
        trees = tuple(
            tuple(range(int(first[p]), int(first[p + 1]))) for p in range(len(topology.phones))
        )
        return cls(trees=trees, states=topology.states)

    def check(self, topology: Topology) -> None:
        """Checks a tying that was read from a file.

        Raises:
            ValueError: It does not fit the phones, or leads to states that are none.
        """
        sizes = [topology.size(phone) for phone in range(len(topology.phones))]
        if [len(trees) for trees in self.trees] != sizes:
            raise ValueError("the tree does not fit the phones")
        numbers = {leaf for trees in self.trees for tree in trees for leaf in leaves(tree)}
        if numbers != set(range(self.states)):
            raise ValueError(f"the tree's leaves are not the states 0 to {self.states - 1}")

    def context_independent(self, phone: int) -> bool:
        """Whether no question is asked about a phone's neighbours."""
        return all(isinstance(tree, int) for tree in self.trees[phone])

    @property
    def context_dependent(self) -> bool:
        """Whether any question is asked at all."""
        return not all(self.context_independent(phone) for phone in range(len(self.trees)))

    def phones_of(self, states: Collection[int]) -> set[int]:
        """The phones that have any of some states."""
        return {
            phone
            for phone, trees in enumerate(self.trees)
            if any(leaf in states for tree in trees for leaf in leaves(tree))
        }

    def untied(self, topology: Topology) -> Ints:
        """The state of the topology that each number stands for, in whatever context."""
        found = np.zeros(self.states, dtype=np.int64)
        for first, trees in zip(topology.first, self.trees, strict=False):
            for local, tree in enumerate(trees):
                found[leaves(tree)] = first + local
        return found

    def states_of(self, left: int, phone: int, right: int) -> tuple[int, ...]:
        """The numbers of a phone's states between two neighbours."""
        key = left, phone, right
        if key not in self._rows:
            self._rows[key] = tuple(_descend(tree, left, right) for tree in self.trees[phone])
        return self._rows[key]

    def to_json(self) -> JsonValue:
        """As lists: a number, or [side, phones, yes, no]."""
        return {"states": self.states, "trees": [[_pack(t) for t in row] for row in self.trees]}

    @classmethod
    def from_json(cls, facts: dict[str, JsonValue]) -> StateTying:
        """Reads what `to_json` gives.

        Raises:
            ValueError: It is something else.
        """
        trees, states = facts.get("trees"), facts.get("states")
        if not isinstance(trees, list) or not isinstance(states, int):
            raise ValueError("no trees")
        rows = (row if isinstance(row, list) else [] for row in trees)
        return cls(trees=tuple(tuple(_unpack(t) for t in row) for row in rows), states=states)


def _descend(node: Node, left: int, right: int) -> int:
    while isinstance(node, Question):
        neighbour = left if node.side is Side.LEFT else right
        node = node.yes if neighbour in node.phones else node.no
    return node


def leaves(node: Node) -> list[int]:
    """All numbers that questions may lead to."""
    return [node] if isinstance(node, int) else [*leaves(node.yes), *leaves(node.no)]


def _pack(node: Node) -> JsonValue:
    if isinstance(node, int):
        return node
    phones: Sequence[JsonValue] = sorted(node.phones)
    return [node.side.value, list(phones), _pack(node.yes), _pack(node.no)]


def _unpack(value: JsonValue) -> Node:
    if isinstance(value, int):
        return value
    if not isinstance(value, list) or len(value) != 4 or not isinstance(value[1], list):
        raise ValueError("a tree is broken")
    phones = frozenset(phone for phone in value[1] if isinstance(phone, int))
    return Question(Side(value[0]), phones, _unpack(value[2]), _unpack(value[3]))


@dataclass(frozen=True, kw_only=True, eq=False)
class ContextStats:
    """Statistics of states in context: M different ones.

    Attributes:
        left: M: the phone before.
        phone: M: the phone.
        right: M: the phone after.
        local: M: the state's number within the phone.
        sums: M x (1 + 2D): the frames' number, their sum and the sum of their squares.
    """

    left: Ints
    phone: Ints
    right: Ints
    local: Ints
    sums: Floats

    @classmethod
    def of(cls, keys: Ints, sums: Floats) -> ContextStats:
        """Adds up rows of equal keys: left, phone, right and local."""
        order = np.lexsort(keys.T[::-1])
        keys = keys[order]
        changes = np.ones(len(keys), dtype=bool)
        changes[1:] = (keys[1:] != keys[:-1]).any(1)
        first = np.flatnonzero(changes)
        sums = np.add.reduceat(sums[order], first)
        left, phone, right, local = keys[first].T
        return cls(left=left, phone=phone, right=right, local=local, sums=sums)

    @property
    def keys(self) -> Ints:
        """M x 4: left, phone, right and local."""
        return np.stack([self.left, self.phone, self.right, self.local], axis=1)


def frame_phones(states: Ints, topology: Topology) -> tuple[Ints, Ints, NDArray[np.bool_]]:
    """Phone and local state of each frame of an aligned utterance, and whether a phone begins.

    A phone begins where another one is, or where the states of a phone begin again (those of
    silence come in any order).
    """
    phone = np.searchsorted(topology.first, states, side="right") - 1
    local = states - topology.first[phone]
    ordered = np.diff(topology.first)[phone] == MIN_PHONE_FRAMES
    begins = np.ones(len(states), dtype=bool)
    begins[1:] = (phone[1:] != phone[:-1]) | (ordered[1:] & (local[1:] < local[:-1]))
    return phone, local, begins


def frame_contexts(states: Ints, topology: Topology) -> FrameContexts:
    """Left, phone, right and local state of each frame of an aligned utterance: T x 4.

    Silence is taken to lie beyond both ends.
    """
    phone, local, begins = frame_phones(states, topology)
    present = np.concatenate([[0], phone[begins], [0]])
    at = np.cumsum(begins)
    return np.stack([present[at - 1], phone, present[at + 1], local], axis=1).astype(np.int16)


def accumulate_contexts(pieces: Iterable[tuple[Frames, FrameContexts]]) -> ContextStats:
    """Adds up frames by their contexts; each piece has frames and what `frame_contexts` gave."""

    def counted(frames: Frames, contexts: FrameContexts) -> ContextStats:
        x = frames.astype(np.float64)
        ones = np.concatenate([np.ones((len(x), 1)), x, x**2], axis=1)
        return ContextStats.of(contexts.astype(np.int64), ones)

    return merge_contexts(counted(*piece) for piece in pieces)


def merge_contexts(parts: Iterable[ContextStats]) -> ContextStats:
    """Statistics of several sets of frames together; at least one."""

    def joined(one: ContextStats, other: ContextStats) -> ContextStats:
        keys = np.concatenate([one.keys, other.keys])
        return ContextStats.of(keys, np.concatenate([one.sums, other.sums]))

    return reduce(joined, parts)


def gaussian_loglike(sums: Floats) -> Floats:
    """The log-likelihood of frames under the one Gaussian that fits them best, less a constant.

    With n frames of variance v_d this is -(n / 2) sum_d log v_d; the rest of the density,
    -(n / 2) D (1 + log 2 pi), is the same however frames are divided.

    Args:
        sums: ... x (1 + 2D), as in `ContextStats`.
    """
    count = sums[..., :1]
    size = (sums.shape[-1] - 1) // 2
    mean = sums[..., 1 : 1 + size] / np.maximum(count, 1e-10)
    variance = sums[..., 1 + size :] / np.maximum(count, 1e-10) - mean**2
    spread = np.log(np.maximum(variance, VARIANCE_FLOOR)).sum(-1)
    return np.asarray(-0.5 * count[..., 0] * spread)


def cluster_questions(contexts: ContextStats, phones: int) -> list[frozenset[int]]:
    """Sets of similar phones, and every phone alone.

    For each state the phones are merged two by two, always those whose frames lose the least
    likelihood by sharing one Gaussian; every set on the way is a question.
    """
    questions = {frozenset([phone]) for phone in range(phones)}
    for local in range(MIN_PHONE_FRAMES):
        mine = contexts.local == local
        present = [p for p in range(phones) if (mine & (contexts.phone == p)).any()]
        groups = [frozenset([p]) for p in present]
        sums = np.stack([contexts.sums[mine & (contexts.phone == p)].sum(0) for p in present])
        # What each pair loses; only a new group's row is computed when two have become one.
        loss = np.full((len(groups), len(groups)), np.inf)
        for row in range(1, len(groups)):
            loss[:row, row] = _loss(sums[:row], sums[row])
        while len(groups) > 2:
            i, j = np.unravel_index(int(np.argmin(loss)), loss.shape)
            joined, total = groups[i] | groups[j], sums[i] + sums[j]
            rest = [n for n in range(len(groups)) if n not in (i, j)]
            groups = [*(groups[n] for n in rest), joined]
            sums = np.concatenate([sums[rest], total[None]])
            loss = np.pad(loss[np.ix_(rest, rest)], (0, 1), constant_values=np.inf)
            loss[:-1, -1] = _loss(sums[:-1], total)
            questions.add(joined)
    return sorted(questions, key=lambda q: (len(q), sorted(q)))


def _loss(each: Floats, other: Floats) -> Floats:
    """The likelihood that is lost when each of some groups shares a Gaussian with another one."""
    return gaussian_loglike(each) + gaussian_loglike(other) - gaussian_loglike(each + other)


@dataclass(frozen=True, eq=False)
class _Split:
    """The best question about some contexts, and what it gains."""

    gain: float
    side: Side
    question: int
    yes: NDArray[np.bool_]


class _Grower:
    """Leaves that can be divided, the most rewarding one first."""

    def __init__(self, contexts: ContextStats, phones: int) -> None:
        self._contexts = contexts
        self.questions = cluster_questions(contexts, phones)
        self._within = np.zeros((len(self.questions), phones))
        for number, question in enumerate(self.questions):
            self._within[number, sorted(question)] = 1.0

    def best(self, members: Ints) -> _Split | None:
        """The question that gains the most among some contexts, if it gains enough."""
        sums = self._contexts.sums[members]
        whole = sums.sum(0)
        found: _Split | None = None
        for side in Side:
            neighbours = getattr(self._contexts, side.value)[members]
            order = np.argsort(neighbours, kind="stable")
            present, first = np.unique(neighbours[order], return_index=True)
            yes = self._within[:, present] @ np.add.reduceat(sums[order], first)
            no = whole - yes
            gain = gaussian_loglike(yes) + gaussian_loglike(no) - gaussian_loglike(whole)
            gain[np.minimum(yes[:, 0], no[:, 0]) < _FEWEST] = -np.inf
            question = int(np.argmax(gain))
            if gain[question] > (found.gain if found else _LEAST_GAIN):
                chosen = self._within[question, neighbours] > 0
                found = _Split(float(gain[question]), side, question, chosen)
        return found


def build_tree(contexts: ContextStats, topology: Topology, most: int) -> StateTying:
    """Grows a tree for each state of each phone that has 3 states.

    The leaf whose best question gains the most log-likelihood is divided next, until none gains
    300 (with 50 frames on either side), or there are `most` states.
    """
    grower = _Grower(contexts, len(topology.phones))
    members: list[Ints] = []
    answers: dict[int, tuple[_Split, int, int]] = {}
    roots: list[list[int]] = []
    queue: list[tuple[float, int, _Split]] = []

    def add(own: Ints, *, divisible: bool) -> int:
        members.append(own)
        split = grower.best(own) if divisible and len(own) > 1 else None
        if split is not None:
            heapq.heappush(queue, (-split.gain, len(members) - 1, split))
        return len(members) - 1

    for phone in range(len(topology.phones)):
        size = topology.size(phone)
        roots.append([])
        for local in range(size):
            own = np.flatnonzero((contexts.phone == phone) & (contexts.local == local))
            roots[-1].append(add(own, divisible=size == MIN_PHONE_FRAMES))
    leaves = len(members)
    while queue and leaves < most:
        _, node, split = heapq.heappop(queue)
        yes = add(members[node][split.yes], divisible=True)
        no = add(members[node][~split.yes], divisible=True)
        answers[node] = split, yes, no
        leaves += 1
    numbers: list[int] = []

    def finish(node: int) -> Node:
        if node not in answers:
            numbers.append(node)
            return len(numbers) - 1
        split, yes, no = answers[node]
        return Question(split.side, grower.questions[split.question], finish(yes), finish(no))

    trees = tuple(tuple(finish(node) for node in row) for row in roots)
    return StateTying(trees=trees, states=len(numbers))
