"""TDNN, LSTM and BLSTM: against torch's own layers, and chunks against whole utterances."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from unisono.errors import UserError
from unisono.models import BLSTM, LSTM, TDNN, build
from unisono.models.lstm import ProjectedLSTM, together
from unisono.optim import NaturalGradientSGD

INPUTS, OUTPUTS = 5, 6
SMALL: dict[str, dict[str, Any]] = {
    "tdnn": {"hidden": [7, 8, 9, 7]},
    "lstm": {"hidden": [8, 12], "left": 9, "right": 3},
    "blstm": {"hidden": [6, 8], "bottleneck": 4, "left": 9, "right": 7},
}


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def small(name: str, seed: int = 0, **options: Any) -> Any:
    return build(name, inputs=INPUTS, outputs=OUTPUTS, seed=seed, **{**SMALL[name], **options})


def frames(model: Any, count: int, batch: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(4)
    return torch.randn(batch, model.left + count + model.right, INPUTS, generator=generator)


@pytest.mark.parametrize("projection", [0, 3])
def test_lstm_layer_is_that_of_torch(projection: int) -> None:
    layer = ProjectedLSTM(INPUTS, 8, projection, torch.Generator().manual_seed(1))
    theirs = nn.LSTM(INPUTS, 8, proj_size=projection, batch_first=True)
    with torch.no_grad():
        theirs.weight_ih_l0.copy_(layer.inward.weight)
        theirs.weight_hh_l0.copy_(layer.recurrent.weight)
        theirs.bias_ih_l0.copy_(layer.inward.bias)
        theirs.bias_hh_l0.zero_()
        if projection:
            theirs.weight_hr_l0.copy_(layer.projection.weight)
    x = torch.randn(3, 20, INPUTS)
    assert torch.allclose(layer(x), theirs(x)[0], atol=1e-6)


@pytest.mark.parametrize("projection", [0, 5])
def test_kernels_give_what_frame_by_frame_gives(
    projection: int,
) -> None:
    """Hooks, as natural gradient has them, make it go frame by frame."""
    layer = ProjectedLSTM(7, 11, projection, torch.Generator().manual_seed(1)).double()
    x = torch.randn(3, 20, 7, dtype=torch.float64, requires_grad=True)
    wanted = [x, *layer.parameters()]

    def found(outputs: torch.Tensor) -> list[torch.Tensor]:
        return [outputs, *torch.autograd.grad(outputs.square().sum(), wanted)]

    calls: list[int] = []
    at_once = found(together(x, [[layer]]))
    handle = layer.recurrent.register_forward_hook(lambda *_: calls.append(1))
    apart = found(layer(x))
    handle.remove()
    assert len(calls) == 20
    for one, other in zip(at_once, apart, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)
    assert layer.has_kernel(x) == (projection == 0), "a CPU has no kernel with a projection"


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("lstm", {"hidden": [8, 8, 8], "projection": 0}),
        ("lstm", {"hidden": [8, 12], "projection": 0}),
        ("lstm", {"hidden": [8, 8], "projection": 0, "dropout": 0.5}),
        ("blstm", {}),
    ],
)
def test_stacked_kernels_give_what_frame_by_frame_gives(name: str, options: Any) -> None:
    model = small(name, **options).double().train("dropout" not in options)
    x = frames(model, 12, batch=3).double()

    def found() -> list[Tensor]:
        logits = model(x)
        return [logits, *torch.autograd.grad(logits.square().sum(), list(model.parameters()))]

    at_once = found()
    for layer in model.modules():
        if isinstance(layer, ProjectedLSTM):
            layer.recurrent.register_forward_hook(lambda *_: None)
    for one, other in zip(at_once, found(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


def test_dropout_between_stacked_layers() -> None:
    model = small("lstm", hidden=[8, 8], projection=0, dropout=0.5)
    x = frames(model, 12)
    assert not torch.equal(model(x), model(x))
    assert torch.equal(model.eval()(x), model(x))


def test_a_projection_is_a_quarter_of_the_cells_or_as_asked_for() -> None:
    def widths(**options: Any) -> list[int]:
        model = LSTM(inputs=INPUTS, outputs=OUTPUTS, hidden=[8, 12], **options)
        return [layer.outputs for layer in model.layers if isinstance(layer, ProjectedLSTM)]

    assert widths() == widths(projection=None) == [2, 3]
    assert widths(projection=5) == [5, 5]
    assert widths(projection=0) == [8, 12]
    plain = LSTM(inputs=INPUTS, outputs=OUTPUTS, hidden=[8], projection=0)
    assert not any("projection" in name for name in plain.state_dict())


def test_tdnn_sees_what_it_says() -> None:
    model = TDNN(inputs=2, outputs=3, hidden=[24, 25, 26, 27], steps=[1, 2, 3])
    assert (model.left, model.right) == (9, 9)
    x = torch.randn(1, 30, 2, requires_grad=True)
    logits = model(x)
    assert logits.shape == (1, 12, 3)
    (seen,) = torch.autograd.grad(logits[0, 5].sum(), x)  # wide: some path of live units reaches
    touched = seen[0].abs().sum(1).nonzero().flatten()
    assert (int(touched.min()), int(touched.max())) == (5, 23)


def test_tdnn_is_a_dnn_on_spliced_frames() -> None:
    model = TDNN(inputs=2, outputs=3, hidden=[4], steps=[2])
    x = torch.randn(1, 10, 2)
    first, last = model.layers[0], model.layers[2]
    wanted = []
    for t in range(2, 8):
        spliced = torch.stack([x[0, t - 2], x[0, t], x[0, t + 2]], 1).flatten()
        h = (first.weight.flatten(1) @ spliced + first.bias).relu()
        wanted.append(last.weight.flatten(1) @ h + last.bias)
    assert torch.allclose(model(x)[0], torch.stack(wanted), atol=1e-6)


def test_label_delay_and_left_context_of_the_lstm() -> None:
    model = small("lstm")
    x = frames(model, 10).requires_grad_()
    logits = model(x)
    assert logits.shape == (1, 10, OUTPUTS)
    (seen,) = torch.autograd.grad(logits[0, 4].sum(), x)
    touched = seen[0].abs().sum(1).nonzero().flatten()
    # Frame 4 is frame left + 4 of x, and is classified 3 frames later.
    assert (int(touched.min()), int(touched.max())) == (0, 9 + 4 + 3)


def test_blstm_sees_everything_and_classifies_the_middle() -> None:
    model = small("blstm")
    x = frames(model, 10).requires_grad_()
    logits = model(x)
    assert logits.shape == (1, 10, OUTPUTS)
    (seen,) = torch.autograd.grad(logits[0, 0].sum(), x)
    assert bool(seen[0].abs().sum(1).all())


@pytest.mark.parametrize("name", SMALL)
def test_chunks_with_full_context_give_the_posteriors_of_the_whole(name: str) -> None:
    model = small(name).double()
    x = frames(model, 40).double()
    whole = model(x).log_softmax(2)
    around = model.left + model.right
    for start in range(0, 40, 10):
        if name == "tdnn":  # full context is left and right
            part = model(x[:, start : start + around + 10])
        elif name == "lstm":  # everything before, and the label delay
            part = model(x[:, : start + around + 10])[:, start:]
        else:  # everything: the chunk's own place is all that is left to get wrong
            model.left, model.right = 9 + start, 7 + 30 - start
            part = model(x)
        assert torch.allclose(part.log_softmax(2), whole[:, start : start + 10], atol=1e-12)


@pytest.mark.parametrize("name", ["lstm", "blstm"])
def test_the_more_context_the_nearer_to_the_whole(name: str) -> None:
    model = small(name)
    x = torch.randn(1, 200, INPUTS, generator=torch.Generator().manual_seed(2))
    model.left, model.right = 100, model.right if name == "lstm" else 80
    whole = model(x)[:, :20]
    far = []
    for context in (2, 10, 40):
        model.left = context
        right = model.right
        if name == "blstm":
            model.right = right = context
        part = model(x[:, 100 - context : 120 + right])
        far.append(float((part - whole).norm().detach()))
        model.right = 80 if name == "blstm" else right
    assert far[0] > far[1] > far[2]
    assert far[2] < 0.05 * far[0]


@pytest.mark.parametrize("name", SMALL)
def test_seeds_decide_the_first_parameters_alone(name: str) -> None:
    first = small(name, 5).state_dict()
    torch.rand(3)
    before = torch.get_rng_state()
    again, other = small(name, 5).state_dict(), small(name, 6).state_dict()
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(first[key], again[key]) for key in first)
    weights = [key for key in first if key.endswith("weight")]
    assert weights and not any(torch.equal(first[key], other[key]) for key in weights)


@pytest.mark.parametrize("name", SMALL)
def test_natural_gradient_reaches_every_layer_and_learns(name: str) -> None:
    losses = {}
    for natural in (True, False):
        model = small(name)
        x = frames(model, 12, batch=16)
        inside = x[:, model.left : model.left + 12]
        y = (inside[..., 0] > 0).long() + 2 * (inside[..., 1] > 0).long()
        optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.2)
        if natural:
            optimizer = NaturalGradientSGD(model, 0.2)
            assert not [line for line in optimizer.describe() if "plain SGD" in line]
        for _ in range(60):
            loss = functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        if natural:
            fisher = optimizer.state_dict()["fisher"]
            assert {side["input"]["t"] for side in fisher.values()} == {60}
        losses[natural] = loss.item()
    assert losses[True] < losses[False]


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(UserError, match="even"):
        BLSTM(inputs=3, outputs=3, hidden=[4, 5])
    for model in (LSTM, BLSTM):
        with pytest.raises(UserError, match="without layers"):
            model(inputs=3, outputs=3, hidden=[])
