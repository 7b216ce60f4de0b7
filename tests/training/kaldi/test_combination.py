"""The final combination, against every mean computed by itself; statistics against the data's."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from unisono.training.kaldi.combination import (
    combine,
    copy_state,
    estimate_statistics,
    has_statistics,
)
from unisono.training.kaldi.kaldi_schedule import MOST_EVALUATIONS


def walk(count: int, seed: int = 0) -> list[dict[str, torch.Tensor]]:
    """Models on their way to 1, each with noise of its own."""
    torch.manual_seed(seed)
    states = []
    for step in range(count):
        layer = nn.Linear(3, 2)
        with torch.no_grad():
            for parameter in layer.parameters():
                parameter.copy_(1.0 - 0.7**step + 0.2 * torch.randn_like(parameter))
        states.append(copy_state(layer))
    return states


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("count", [1, 2, 12])
def test_the_best_mean_of_the_last_models_is_taken(count: int, seed: int) -> None:
    states = walk(count, seed)
    model = nn.Linear(3, 2)

    def judge() -> float:
        return -sum(float((p.detach() - 1).square().sum()) for p in model.parameters())

    means = [
        {k: torch.stack([s[k] for s in states[-n:]]).double().mean(0) for k in states[0]}
        for n in range(1, count + 1)
    ]
    wanted = [-sum(float((v - 1).square().sum()) for v in mean.values()) for mean in means]
    n, objectives = combine(model, states, judge, lambda: None)
    assert objectives == pytest.approx(wanted, rel=1e-5)
    assert n == wanted.index(max(wanted)) + 1
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, means[n - 1][name].float())
    assert judge() >= objectives[0]


def test_no_more_than_thirty_are_tried() -> None:
    tried: list[int] = []
    combine(nn.Linear(3, 2), walk(100), lambda: float(len(tried)), lambda: tried.append(0))
    assert len(tried) - 1 <= MOST_EVALUATIONS


def test_counters_are_not_averaged() -> None:
    states = []
    for count in (3, 8):
        norm = nn.BatchNorm1d(2)
        assert norm.num_batches_tracked is not None
        norm.num_batches_tracked.fill_(count)
        states.append(copy_state(norm))
    model = nn.BatchNorm1d(2)
    combine(model, states, lambda: 0.0, lambda: None)
    assert model.num_batches_tracked is not None and int(model.num_batches_tracked) == 8


def test_statistics_are_those_of_the_data() -> None:
    torch.manual_seed(0)
    first, norm = nn.Linear(4, 3), nn.BatchNorm1d(3)
    model = nn.Sequential(first, norm, nn.ReLU(), nn.Dropout(0.5))
    assert has_statistics(model) and not has_statistics(first)
    x = 2 + 3 * torch.randn(6, 50, 4)
    model.train()
    first.eval()
    estimate_statistics(model, list(x))
    with torch.no_grad():
        inside = first(x)
    assert norm.running_mean is not None and norm.running_var is not None
    torch.testing.assert_close(norm.running_mean, inside.mean((0, 1)))
    torch.testing.assert_close(norm.running_var, inside.var(1).mean(0))
    assert norm.momentum == 0.1
    assert model.training and norm.training and not first.training
