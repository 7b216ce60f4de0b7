"""Kaldi's nnet3 text: read strictly, and written so that it computes what the network does."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from unisono.models import DNN, TDNN
from unisono.training.nnet3_reader import Frames, Nnet3
from unisono.training.nnet3_writer import kaldi_vector, write_nnet3

# One unit: relu(2 x[t-1] - x[t+2] + 0.5), then 3 times it against 0.
BY_HAND = """<Nnet3>\x20
input-node name=input dim=1
component-node name=a component=first input=Append(Offset(input, -1), Offset(input, 2))
component-node name=b component=relu input=a
component-node name=c component=second input=b
component-node name=d component=softmax input=c
output-node name=output input=d objective=linear

<NumComponents> 4\x20
<ComponentName> first <AffineComponent> <LearningRate> 0.001 <LinearParams>  [
  2 -1 ]
<BiasParams>  [ 5e-1 ]
</AffineComponent>\x20
<ComponentName> relu <RectifiedLinearComponent> <Dim> 1 <ValueAvg>  [ ]
<DerivAvg>  [ ]
<Count> 0 </RectifiedLinearComponent>\x20
<ComponentName> second <AffineComponent> <LearningRate> 0.001 <LinearParams>  [
  3\x20
  0 ]
<BiasParams>  [ 0 0 ]
</AffineComponent>\x20
<ComponentName> softmax <LogSoftmaxComponent> <Dim> 2 <ValueAvg>  [ ]
<DerivAvg>  [ ]
<Count> 0 </LogSoftmaxComponent>\x20
</Nnet3>\x20
"""


def read(text: str, folder: Path) -> Nnet3:
    path = folder / "text.raw"
    path.write_text(text)
    return Nnet3(path)


def test_a_network_by_hand(tmp_path: Path) -> None:
    """At its edges the first and the last frame are repeated."""
    found = read(BY_HAND, tmp_path).compute(np.array([[1], [2], [4], [3]], dtype=np.float32))
    before, behind = np.array([1, 1, 2, 4]), np.array([4, 3, 3, 3])
    logit = 3 * np.maximum(2 * before - behind + 0.5, 0)
    expected = np.stack([-np.log1p(np.exp(-logit)), -np.log1p(np.exp(logit))], 1)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_no_token_can_be_missing_or_another(tmp_path: Path) -> None:
    for match in re.finditer(r"\S+", BY_HAND):
        before, behind = BY_HAND[: match.start()], BY_HAND[match.end() :]
        for text in (before + behind, before + "<Other>" + behind):
            with pytest.raises(ValueError):
                read(text, tmp_path)


@pytest.mark.parametrize(
    ("there", "instead"),
    [
        ("<Nnet3> \n", "<Nnet3>\n"),  # Kaldi would take the line of the input for the rest of it
        ("</Nnet3> \n", "</Nnet3>"),
        ("\n\n", "\n"),
        ("[ 5e-1 ]", "[\n5e-1 ]"),  # a matrix
        ("  3 \n  0 ]", "  3 0 ]"),
        ("<BiasParams>", "<OrthonormalConstraint> 0.5 <BiasParams>"),
        ("input=b\n", "input=unknown\n"),
        ("name=b ", "name=a "),
        ("Offset(input, 2)", "Offset(input)"),
        ("Append(Offset(input, -1), Offset(input, 2))", "input"),
        ("<ComponentName> relu", "<ComponentName> first"),
    ],
)
def test_what_kaldi_would_not_read(there: str, instead: str, tmp_path: Path) -> None:
    assert BY_HAND.count(there) >= 1
    with pytest.raises(ValueError):
        read(BY_HAND.replace(there, instead), tmp_path)


def random_norms(model: nn.Module) -> None:
    """As training leaves them: no mean is 0, and no variance 1."""
    generator = torch.Generator().manual_seed(3)
    for layer in model.modules():
        if isinstance(layer, nn.BatchNorm1d):
            assert layer.running_mean is not None and layer.running_var is not None
            for tensor in (layer.weight.data, layer.bias.data, layer.running_mean):
                tensor.normal_(generator=generator)
            layer.running_var.uniform_(0.2, 5, generator=generator)


def padded(frames: Frames, width: int) -> torch.Tensor:
    return torch.from_numpy(np.pad(frames, [(width, width), (0, 0)], mode="edge"))


@pytest.mark.parametrize("batch_norm", [False, True])
@pytest.mark.parametrize("hidden", [[], [7], [6, 5, 4]])
def test_dnn(hidden: list[int], batch_norm: bool, tmp_path: Path) -> None:
    context, dimension = 2, 3
    model = DNN(
        inputs=5 * dimension, outputs=4, hidden=hidden, batch_norm=batch_norm, dropout=0.5, seed=1
    ).eval()
    random_norms(model)
    write_nnet3(tmp_path / "model.raw", model, context, dimension)
    frames = np.random.default_rng(0).normal(size=(9, dimension)).astype(np.float32)
    windows = padded(frames, context).unfold(0, 5, 1).transpose(1, 2).flatten(1)
    expected = functional.log_softmax(model(windows), 1).detach().numpy()
    found = Nnet3(tmp_path / "model.raw").compute(frames)
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("batch_norm", [False, True])
@pytest.mark.parametrize("steps", [[1], [1, 2, 3]])
def test_tdnn(steps: list[int], batch_norm: bool, tmp_path: Path) -> None:
    model = TDNN(
        inputs=3, outputs=4, hidden=[6, 5, 7, 5], steps=steps, batch_norm=batch_norm, seed=1
    ).eval()
    random_norms(model)
    write_nnet3(tmp_path / "model.raw", model, 0, 3)
    nnet = Nnet3(tmp_path / "model.raw")
    for length in (1, 2, 30):
        frames = np.random.default_rng(0).normal(size=(length, 3)).astype(np.float32)
        logits = model(padded(frames, model.left)[None])[0]
        expected = functional.log_softmax(logits, 1).detach().numpy()
        np.testing.assert_allclose(nnet.compute(frames), expected, atol=1e-5)


def test_every_number_comes_back(tmp_path: Path) -> None:
    """Each float32, but those that some readers of numbers refuse as too small."""
    numbers = np.random.default_rng(0).integers(0, 2**31, 1000).astype(np.uint32).view(np.float32)
    numbers = numbers[np.isfinite(numbers) & (numbers >= np.finfo(np.float32).tiny)]
    text = kaldi_vector(np.append(numbers, 1e-40).astype(np.float64))
    assert text.startswith(" [ ") and text.endswith(" ]\n")
    found = np.array(text.split()[1:-1], dtype=np.float32)
    np.testing.assert_array_equal(found, np.append(numbers, np.float32(0)))
