"""Tuning against a decoder whose best settings are known, and against trying all settings."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from unisono.speech.decoding.decoder import Frames, Hypothesis, Words
from unisono.speech.decoding.tuning import tune

pytest.importorskip("kaldialign", reason="the speech extra is not installed")

RIGHT = ("right", "words")
WRONG = ("wrong", "words")
LONG = ("right", "words", "too", "many")
SHORT = ("right",)


class ListDecoder:
    """Chooses the cheapest of a few known paths of each utterance."""

    def __init__(self, paths: Sequence[Sequence[Hypothesis]]) -> None:
        self._paths = paths
        self.asked: list[tuple[float, float]] = []

    def decode(
        self, loglikes: Sequence[Frames], scale: float, penalty: float
    ) -> Iterator[Hypothesis]:
        assert len(loglikes) == len(self._paths)
        self.asked.append((scale, penalty))
        return (min(some, key=lambda path: path.cost(scale, penalty)) for some in self._paths)

    def errors(self, scale: float, penalty: float) -> int:
        """Word errors with a setting, by the words that are added, missing or others."""
        made = {RIGHT: 0, WRONG: 1, LONG: 2, SHORT: 1}
        chosen = (min(some, key=lambda path: path.cost(scale, penalty)) for some in self._paths)
        return sum(made[path.words] for path in chosen)


def utterances_with_the_best_setting_at(scale: float, penalty: float) -> list[list[Hypothesis]]:
    """Each is wrong from a scale or a penalty on that lies to one side of the best one."""
    paths = []
    for steps in np.linspace(0.2, 6, 30):
        for side in (-1, 1):
            limit = scale * 2 ** (side * steps / 3)
            # Costs are equal at the limit; beyond it, away from the best scale, wrong words win.
            right = Hypothesis(words=RIGHT)
            wrong = Hypothesis(words=WRONG, graph_cost=side * limit, acoustic_cost=-side)
            paths.append([right, wrong])
            words = SHORT if side > 0 else LONG
            more = len(words) - len(RIGHT)
            edge = penalty + side * steps / 2
            paths.append([right, Hypothesis(words=words, graph_cost=-more * edge)])
    return paths


def tuned(decoder: ListDecoder, count: int) -> tuple[float, float, int, int]:
    references: list[Words] = [RIGHT] * count
    lines: list[str] = []
    settings = tune(decoder, [np.zeros((1, 1), np.float32)] * count, references, lines.append)
    assert len(lines) == settings.tried == len(decoder.asked) <= 12
    assert len(set(decoder.asked)) == len(decoder.asked), "no setting twice"
    assert settings.words == 2 * count
    return settings.scale, settings.penalty, settings.errors, settings.tried


@pytest.mark.parametrize(
    ("scale", "penalty"), [(0.1, 0.0), (0.063, 1.0), (0.16, -0.5), (0.03, 0.5), (0.3, -1.5)]
)
def test_the_best_setting_is_found(scale: float, penalty: float) -> None:
    paths = utterances_with_the_best_setting_at(scale, penalty)
    found_scale, found_penalty, _, _ = tuned(ListDecoder(paths), len(paths))
    assert abs(math.log2(found_scale / scale)) < 0.34
    assert abs(found_penalty - penalty) <= 0.5


def test_the_errors_are_those_of_the_setting_and_few_settings_have_fewer() -> None:
    random = np.random.default_rng(0)
    for _ in range(20):
        paths = [
            [
                Hypothesis(words=words, graph_cost=g, acoustic_cost=a)
                for words, g, a in zip(
                    (RIGHT, WRONG, LONG, SHORT),
                    random.normal(0, 1, 4),
                    random.normal(0, 10, 4),
                    strict=True,
                )
            ]
            for _ in range(100)
        ]
        scale, penalty, errors, _ = tuned(ListDecoder(paths), 100)
        decoder = ListDecoder(paths)
        assert errors == decoder.errors(scale, penalty) <= decoder.errors(0.1, 0.0)
        grid = [
            decoder.errors(0.1 * 2 ** (k / 3), n / 2) for k in range(-9, 10) for n in range(-8, 9)
        ]
        assert errors <= np.quantile(grid, 0.1)


def test_the_search_ends_where_the_best_setting_is_out_of_reach() -> None:
    paths = utterances_with_the_best_setting_at(1e-4, -20.0)
    *_, tried = tuned(ListDecoder(paths), len(paths))
    assert tried >= 5, "to all sides of the first one"
