from __future__ import annotations

import numpy as np
import pytest
import torch

from unisono.errors import UserError
from unisono.models import DNN, build


def test_it_computes_what_it_says() -> None:
    model = DNN(inputs=6, outputs=3, hidden=[5, 4], seed=1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(
                torch.randn(parameter.shape, generator=torch.Generator().manual_seed(2))
            )
    x = np.random.default_rng(0).standard_normal((7, 6)).astype(np.float32)
    w1, b1, w2, b2, w3, b3 = (p.detach().numpy() for p in model.parameters())
    h = np.maximum(x @ w1.T + b1, 0)
    h = np.maximum(h @ w2.T + b2, 0)
    logits = model(torch.from_numpy(x)).detach().numpy()
    np.testing.assert_allclose(logits, h @ w3.T + b3, rtol=1e-5, atol=1e-5)
    assert logits.min() < 0  # no ReLU behind the last layer


def test_the_same_seed_gives_the_same_parameters_whatever_was_drawn_before() -> None:
    first = DNN(inputs=4, outputs=3, hidden=[8], seed=5).state_dict()
    torch.rand(3)
    state = torch.get_rng_state()
    again = DNN(inputs=4, outputs=3, hidden=[8], seed=5).state_dict()
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(first[key], again[key]) for key in first)
    other = DNN(inputs=4, outputs=3, hidden=[8], seed=6).state_dict()
    assert not torch.equal(first["layers.0.weight"], other["layers.0.weight"])


def test_the_second_moment_keeps_its_size_through_many_layers() -> None:
    torch.manual_seed(0)
    model = DNN(inputs=256, outputs=256, hidden=[256] * 12)
    with torch.no_grad():
        logits = model(torch.randn(512, 256))
    # E[x^2] = 1 and each layer keeps E[h^2]; a gain of 1 instead of 2 would leave 2^-12 here.
    assert 0.3 < logits.square().mean().item() < 3.0


def test_no_hidden_layer_is_a_linear_classifier() -> None:
    model = DNN(inputs=4, outputs=3, hidden=[])
    assert [tuple(p.shape) for p in model.parameters()] == [(3, 4), (3,)]


def test_dropout_acts_in_training_alone() -> None:
    torch.manual_seed(0)
    model = DNN(inputs=4, outputs=3, hidden=[64], dropout=0.5)
    x = torch.randn(2, 4)
    assert not torch.equal(model(x), model(x))
    model.eval()
    assert torch.equal(model(x), model(x))


def test_batch_norm_normalises_each_hidden_layer() -> None:
    torch.manual_seed(0)
    model = DNN(inputs=4, outputs=3, hidden=[8, 8], batch_norm=True)
    norms = [layer for layer in model.layers if isinstance(layer, torch.nn.BatchNorm1d)]
    assert len(norms) == 2
    seen: list[torch.Tensor] = []
    norms[1].register_forward_hook(lambda _, __, out: seen.append(out))
    model(100 * torch.randn(64, 4) + 50)
    assert seen[0].mean(0).abs().max().item() < 1e-4
    assert (seen[0].std(0) - 1).abs().max().item() < 0.05
    biases = [name for name, _ in model.named_parameters() if name.endswith("bias")]
    assert len(biases) == 3  # two shifts and the output layer's own


def test_build_by_name() -> None:
    model = build("dnn", inputs=4, outputs=3, hidden=[8], seed=1)
    assert isinstance(model, DNN)
    with pytest.raises(UserError, match="there is no model 'rnn'; did you mean 'dnn'"):
        build("rnn", inputs=4, outputs=3)
