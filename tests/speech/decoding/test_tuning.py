"""Tuning finds the bottom of a bowl, and makes lattices only where it needs them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from unisono.speech.decoding.decoder import Frames, Words
from unisono.speech.decoding.tuning import tune

pytest.importorskip("kaldialign", reason="the speech extra is not installed")


class Bowl:
    """Makes more errors the farther scale and penalty are from a point."""

    processes = 1
    worker_cpu_s = 0.0

    def __init__(self, scale: float, penalty: float) -> None:
        self._scale, self._penalty = scale, penalty
        self.made: list[float] = []
        self.asked = 0

    def make_lattices(self, loglikes: Sequence[Frames], scale: float) -> Iterator[Path]:
        self.made.append(scale)
        return (Path(str(n)) for n in range(len(loglikes)))

    def rescore(self, lattices: Sequence[Path], scale: float, penalty: float) -> list[Words]:
        assert lattices == [Path("0")]
        assert 0.49 < scale / self.made[-1] < 2.01, "lattices hold for a factor of two"
        self.asked += 1
        far = 12 * abs(math.log2(scale / self._scale)) + 4 * abs(penalty - self._penalty)
        return [("wrong",) * int(far) + ("right",)]


@pytest.mark.parametrize(
    ("scale", "penalty", "lattices"),
    [(0.1, 0.0, 1), (0.063, 1.0, 1), (0.16, -0.5, 1), (0.03, 0.5, 2), (0.012, 0.0, 4)],
)
def test_the_bottom_is_found(scale: float, penalty: float, lattices: int) -> None:
    bowl = Bowl(scale, penalty)
    lines: list[str] = []
    settings = tune(bowl, [np.zeros((1, 1), dtype=np.float32)], [("right",)], lines.append)
    assert abs(math.log2(settings.scale / scale)) < 0.2
    assert settings.penalty == penalty
    assert len(bowl.made) == lattices
    assert settings.words == 1 and settings.tried <= bowl.asked
    assert lines[-1] == (
        f"tuning: scale {settings.scale:.3f}, word insertion penalty {settings.penalty:+.1f}: "
        f"{settings.errors} errors"
    )


def test_a_bowl_without_a_bottom_ends() -> None:
    bowl = Bowl(1e-9, -100.0)
    settings = tune(bowl, [np.zeros((1, 1), dtype=np.float32)], [("right",)], lambda _: None)
    assert settings.scale < 0.01
