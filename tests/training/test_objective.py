"""The loss and the accuracy of CTC, against sums over all paths."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn
from torch.nn import functional

from unisono.config import load
from unisono.training.objective import Ctc, FrameStates, collapse, edit_distance, objective_of

OUTPUTS = 4  # the blank and three phones
TARGETS = torch.tensor([[5, 2, 2, 1], [3, 1, 0, 0], [4, 0, 0, 0]])
"""How many outputs each utterance has, then its phones."""


class Given(nn.Module):
    """Logits that are given: N x T x OUTPUTS, or N * T x OUTPUTS."""

    def __init__(self, logits: torch.Tensor) -> None:
        super().__init__()
        self.logits = nn.Parameter(logits)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The logits, in the shape of the input."""
        return self.logits.view(*x.shape[:-1], OUTPUTS)


@pytest.fixture
def model() -> Given:
    return Given(torch.randn(3, 5, OUTPUTS, generator=torch.Generator().manual_seed(1)))


def phones_of(row: torch.Tensor) -> tuple[int, ...]:
    return tuple(p for p in row[1:].tolist() if p)


def probability(logits: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
    """The sum over every path of the utterance whose phones are those of the transcript."""
    outputs = int(row[0])
    shares = logits[:outputs].double().softmax(1)
    total = torch.zeros((), dtype=torch.float64)
    for path in itertools.product(range(OUTPUTS), repeat=outputs):
        if tuple(unit for unit, _ in itertools.groupby(path) if unit) == phones_of(row):
            total = total + torch.stack([shares[t, unit] for t, unit in enumerate(path)]).prod()
    return total


@pytest.mark.parametrize("one_by_one", [False, True])
def test_the_loss_and_its_gradient_are_those_of_all_paths(model: Given, one_by_one: bool) -> None:
    objective, x = Ctc(one_by_one=one_by_one), torch.zeros(3, 5, 1)
    by_hand = [-probability(model.logits[n], row).log() for n, row in enumerate(TARGETS)]
    expected = torch.stack(by_hand).sum() / 12  # 5 + 3 + 4 outputs
    (wanted,) = torch.autograd.grad(expected, model.logits)
    loss = objective.loss(model, x, TARGETS)
    (found,) = torch.autograd.grad(loss, model.logits)
    assert loss.item() == pytest.approx(expected.item(), abs=1e-6)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-6)
    assert not found[1, 3:].any(), "padding has a gradient"
    assert objective.frames(TARGETS) == 12
    assert objective.total(model, x, TARGETS).item() / 12 == pytest.approx(loss.item())


def test_slices_of_a_minibatch_add_up_to_its_loss(model: Given) -> None:
    objective, x = Ctc(one_by_one=False), torch.zeros(3, 5, 1)
    whole = objective.loss(model, x, TARGETS)
    parts = [
        objective.total(Given(model.logits.detach()[n]), x[n], TARGETS[n])
        for n in (slice(0, 2), slice(2, 3))
    ]
    assert sum(part.item() for part in parts) / 12 == pytest.approx(whole.item(), rel=1e-6)


def test_each_utterance_is_measured(model: Given) -> None:
    with torch.no_grad():
        # The greedy paths of the first: 2 2 - 2 1, so all is right; of the others: 3 - -, and 1.
        model.logits.zero_()
        for n, path in enumerate(([2, 2, 0, 2, 1], [3, 0, 0, 1, 1], [0, 1, 1, 0, 3])):
            model.logits[n, range(5), path] = 2.0
        found = Ctc(one_by_one=False).measure(model, torch.zeros(3, 5, 1), TARGETS)
        expected = [probability(model.logits[n], row).log() for n, row in enumerate(TARGETS)]
    torch.testing.assert_close(found.logprob.double(), torch.stack(expected), rtol=1e-5, atol=1e-6)
    assert found.frames.tolist() == [5, 3, 4]
    assert found.labels.tolist() == [3, 1, 0]
    assert found.right.tolist() == [3, 0, -1]  # right, substituted, inserted


def test_paths_collapse_and_distances_are_the_fewest_edits() -> None:
    assert collapse([0, 1, 1, 0, 1, 2, 2, 0]) == [1, 1, 2]
    assert collapse([]) == collapse([0, 0]) == []
    for a, b, distance in (
        ([], [], 0),
        ([1, 2, 3], [], 3),
        ([], [1], 1),
        ([1, 2, 3], [2, 3], 1),
        ([1, 2, 3, 4], [1, 3, 3, 5, 4], 2),
    ):
        assert edit_distance(a, b) == edit_distance(b, a) == distance


def test_states_are_cross_entropy_to_the_bit() -> None:
    torch.manual_seed(0)
    model, x = nn.Linear(6, 5), torch.randn(4, 3, 6)
    y = torch.tensor([[0, 1, 2], [3, 4, -100], [1, 1, 1], [2, -100, -100]])
    expected = functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
    objective = objective_of(load(None, [], {}))
    assert isinstance(objective, FrameStates)
    assert torch.equal(objective.loss(model, x, y), expected)
    assert objective.frames(y) == 9


def test_ctc_has_defaults_of_its_own_and_a_users_words_stand() -> None:
    plain = load(None, [], {"objective": "ctc"})
    assert (plain.model, plain.epochs, plain.minibatch) == ("tdnn", 15, 512)
    assert (plain.network.hidden, plain.network.dropout) == ([512] * 4, 0.2)
    own = load(None, ["network.dropout=0.1", "minibatch=256"], {"objective": "ctc", "epochs": 2})
    assert (own.model, own.epochs, own.minibatch) == ("tdnn", 2, 256)
    assert (own.network.hidden, own.network.dropout) == ([512] * 4, 0.1)
    states = load(None, [], {})
    assert (states.model, states.epochs, states.network.dropout) == ("dnn", 3, 0.0)
