"""Tuning finds the bottom of a bowl, and says how it got there."""

from __future__ import annotations

import math
from typing import Any, cast

import numpy as np
import pytest

from unisono.speech.decoding.decoder import Decoder
from unisono.speech.decoding.tuning import tune

pytest.importorskip("kaldialign", reason="the speech extra is not installed")


class Bowl:
    """Makes more errors the farther scale and penalty are from a point."""

    def __init__(self, scale: float, penalty: float) -> None:
        self._scale, self._penalty = scale, penalty
        self.asked: list[float] = []

    def decode(self, loglikes: Any, scale: float, penalty: float) -> list[tuple[str, ...]]:
        self.asked.append(scale)
        far = 12 * abs(math.log2(scale / self._scale)) + 4 * abs(penalty - self._penalty)
        return [("wrong",) * int(far) + ("right",)]


@pytest.mark.parametrize(("scale", "penalty"), [(0.1, 0.0), (0.04, 1.0), (0.25, -0.5)])
def test_the_bottom_is_found(scale: float, penalty: float) -> None:
    bowl = Bowl(scale, penalty)
    lines: list[str] = []
    settings = tune(cast(Decoder, bowl), [np.zeros((1, 1))], [("right",)], lines.append)
    assert abs(math.log2(settings.scale / scale)) < 0.2
    assert settings.penalty == penalty
    assert settings.words == 1 and settings.tried == len(lines) == len(bowl.asked) <= 20


def test_small_scales_are_not_tried_without_need() -> None:
    bowl = Bowl(0.1, 0.0)
    tune(cast(Decoder, bowl), [np.zeros((1, 1))], [("right",)], lambda _: None)
    assert min(bowl.asked) > 0.05
