"""Coverage rebuilt from what the learners themselves wrote down, without asking the coordinator."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from unisono.fabric import Address


@dataclass
class Coverage:
    """Who trained which position, in order."""

    trained: list[tuple[Address, int]] = field(default_factory=list)

    def train(self, who: Address, position: int) -> None:
        self.trained.append((who, position))

    def missing(self, total: int) -> list[int]:
        seen = {position for _, position in self.trained}
        return [position for position in range(total) if position not in seen]

    def repeated(self) -> list[int]:
        """Positions that were trained more than once, in order."""
        counts = Counter(position for _, position in self.trained)
        return sorted(position for position, count in counts.items() if count > 1)
