"""Which states of phones in context sound alike: each has a number, found by questions."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Union

from pydantic import JsonValue

from unisono.speech.alignment.topology import Topology


class Side(str, Enum):
    """Which neighbour a question is about."""

    LEFT = "left"
    RIGHT = "right"


@dataclass(frozen=True)
class Ask:
    """A question: is the neighbour on that side one of these phones?"""

    side: Side
    phones: frozenset[int]
    yes: Node
    no: Node


Node = Union[int, Ask]  # noqa: UP007 - a recursive alias


@dataclass(frozen=True, kw_only=True)
class Tying:
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
    def none(cls, topology: Topology) -> Tying:
        """Monophones: a number for each state of each phone, whatever its neighbours."""
        first = topology.first
        trees = tuple(
            tuple(range(int(first[p]), int(first[p + 1]))) for p in range(len(topology.phones))
        )
        return cls(trees=trees, states=topology.states)

    def free(self, phone: int) -> bool:
        """Whether no question is asked about a phone's neighbours."""
        return all(isinstance(tree, int) for tree in self.trees[phone])

    @property
    def contextual(self) -> bool:
        """Whether any question is asked at all."""
        return not all(self.free(phone) for phone in range(len(self.trees)))

    def phones_of(self, states: Collection[int]) -> set[int]:
        """The phones that have any of some states."""
        return {
            phone
            for phone, trees in enumerate(self.trees)
            if any(leaf in states for tree in trees for leaf in leaves(tree))
        }

    def row(self, left: int, phone: int, right: int) -> tuple[int, ...]:
        """The numbers of a phone's states between two neighbours."""
        key = left, phone, right
        if key not in self._rows:
            self._rows[key] = tuple(_descend(tree, left, right) for tree in self.trees[phone])
        return self._rows[key]

    def to_json(self) -> JsonValue:
        """As lists: a number, or [side, phones, yes, no]."""
        return {"states": self.states, "trees": [[_pack(t) for t in row] for row in self.trees]}

    @classmethod
    def from_json(cls, facts: dict[str, JsonValue]) -> Tying:
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
    while isinstance(node, Ask):
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
    return Ask(Side(value[0]), phones, _unpack(value[2]), _unpack(value[3]))
