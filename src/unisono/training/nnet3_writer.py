"""A feed-forward network as text that Kaldi reads as an nnet3 model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from unisono.models.dnn import DNN
from unisono.models.tdnn import TDNN

Numbers = NDArray[np.float64]


@dataclass
class _Affine:
    """W x + b of frames at `offsets` from the one that is computed, side by side."""

    offsets: list[int]
    weight: Numbers
    bias: Numbers


def write_nnet3(path: Path, model: DNN | TDNN, context: int, dimension: int) -> None:
    """Writes a raw network, whose node `output` has log posteriors.

    A layer is an AffineComponent with a RectifiedLinearComponent above it. Batch normalisation is
    part of the affine component below it, and dropout, which does nothing but in training, is left
    out.

    Args:
        path: The file to write.
        model: The network.
        context: Frames each side that it gets as one row with each frame.
        dimension: Numbers in a frame.
    """
    layers = _affine_layers(model, context)
    nodes = [f"input-node name=input dim={dimension}"]
    components: list[str] = []
    below = "input"

    def add(name: str, inputs: str, component: str) -> None:
        nodes.append(f"component-node name={name} component={name} input={inputs}")
        components.append(f"<ComponentName> {name} {component}\n")

    for number, layer in enumerate(layers, 1):
        frames = [below if k == 0 else f"Offset({below}, {k})" for k in layer.offsets]
        appended = frames[0] if len(frames) == 1 else f"Append({', '.join(frames)})"
        add(f"affine{number}", appended, _affine(layer))
        units, is_last = len(layer.bias), number == len(layers)
        below = "log-softmax" if is_last else f"relu{number}"
        kind = "LogSoftmaxComponent" if is_last else "RectifiedLinearComponent"
        add(below, f"affine{number}", _nonlinear(kind, units))
    nodes.append(f"output-node name=output input={below} objective=linear")
    with path.open("w", encoding="ascii") as file:
        # Kaldi takes the space off, and then wants the rest of the line to be empty.
        file.write("<Nnet3> \n" + "\n".join(nodes) + "\n\n")
        file.write(f"<NumComponents> {len(components)} \n")
        file.writelines(components)
        file.write("</Nnet3> \n")


def kaldi_vector(numbers: Numbers) -> str:
    """A vector as Kaldi's text."""
    return f" [ {_text(numbers)} ]\n"


def _affine_layers(model: DNN | TDNN, context: int) -> list[_Affine]:
    found: list[_Affine] = []
    for layer in model.layers:
        if isinstance(layer, nn.Linear):
            window = context if not found else 0
            offsets = list(range(-window, window + 1))
            found.append(_Affine(offsets, _array(layer.weight), _bias(layer)))
        elif isinstance(layer, nn.Conv1d):
            (size,), (dilation,) = layer.kernel_size, layer.dilation
            offsets = [(k - size // 2) * dilation for k in range(size)]
            weight = _array(layer.weight.transpose(1, 2).flatten(1))
            found.append(_Affine(offsets, weight, _bias(layer)))
        elif isinstance(layer, nn.BatchNorm1d):
            _fold(layer, found[-1])
    return found


def _fold(norm: nn.BatchNorm1d, into: _Affine) -> None:
    """Makes the layer below do what batch normalisation does outside training."""
    assert norm.running_mean is not None and norm.running_var is not None
    scale = _array(norm.weight) / np.sqrt(_array(norm.running_var) + norm.eps)
    into.weight *= scale[:, None]
    into.bias = (into.bias - _array(norm.running_mean)) * scale + _array(norm.bias)


def _bias(layer: nn.Linear | nn.Conv1d) -> Numbers:
    return np.zeros(len(layer.weight)) if layer.bias is None else _array(layer.bias)


def _array(tensor: Tensor) -> Numbers:
    return tensor.detach().double().numpy()


def _affine(layer: _Affine) -> str:
    rows = "".join(f"\n  {_text(row)}" for row in layer.weight)
    return (
        f"<AffineComponent> <LearningRate> 0.001 <LinearParams>  [{rows} ]\n"
        f"<BiasParams> {kaldi_vector(layer.bias)}</AffineComponent> "
    )


def _nonlinear(kind: str, units: int) -> str:
    """A component without parameters; its statistics, of training in Kaldi, are empty."""
    return f"<{kind}> <Dim> {units} <ValueAvg>  [ ]\n<DerivAvg>  [ ]\n<Count> 0 </{kind}> "


def _text(numbers: Numbers) -> str:
    """Nine digits, which give each float32 back.

    Numbers below the smallest normal one, at which some C++ libraries stop, are 0.
    """
    rounded = numbers.astype(np.float32)
    rounded[np.abs(rounded) < np.finfo(np.float32).tiny] = 0
    return ("%.9g " * len(rounded) % tuple(rounded.tolist())).rstrip()
