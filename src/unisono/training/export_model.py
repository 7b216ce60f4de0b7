"""A run's network for other programs: features of an utterance in, scores of states out."""

from __future__ import annotations

import json
import logging
import os
import secrets
import warnings
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from unisono.errors import UserError
from unisono.models import DNN, TDNN
from unisono.models.lstm import ProjectedLSTM
from unisono.runs.directory import RunDirectory, write_atomically
from unisono.speech.decoding.assets import ASSETS_FOLDER, DecodingAssets
from unisono.speech.dependencies import import_package
from unisono.training.acoustic_scorer import TrainedNetwork
from unisono.training.decoding_assets import log_priors
from unisono.training.nnet3_reader import Nnet3
from unisono.training.nnet3_writer import kaldi_vector, write_nnet3

Frames = NDArray[np.float32]
_CLOSE = 1e-3
"""Largest difference of a log posterior between the network and its export."""


_COMPARED = 1000
"""Frames, at most, that both are given."""


class ModelFormat(str, Enum):
    """What a model can be written as."""

    ONNX = "onnx"
    TORCH = "torch"
    """A program of ``torch.export``; TorchScript, which it replaces, is deprecated."""
    KALDI_NNET3 = "kaldi-nnet3"
    """A raw network of Kaldi's, as text."""


class UtteranceModel(nn.Module):
    """A network with what happens around it: frames (T x D) to log posteriors (T x states).

    The frames are normalised by speaker. The first and the last are repeated for the network's
    context, as in training. With CTC there are log posteriors of blank and phones, of every few
    frames.
    """

    def __init__(self, network: TrainedNetwork) -> None:
        super().__init__()
        self.model = network.model
        self.context, self.subsampling = network.context, network.subsampling
        self.dimension = network.dimension
        self.left, self.right, self.one_by_one = network.left, network.right, network.one_by_one

    def forward(self, frames: Tensor) -> Tensor:
        """Log posteriors at each output."""
        rows = frames
        if self.context > 0:
            padded, count = _padded(frames, self.context, self.context), frames.shape[0]
            around = [padded[k : k + count] for k in range(2 * self.context + 1)]
            rows = torch.cat(around, 1)
        if self.subsampling > 1:
            rows = rows[:: self.subsampling]
        if self.one_by_one:
            return functional.log_softmax(self.model(rows), 1)
        whole = _padded(rows, self.left, self.right)
        return functional.log_softmax(self.model(whole[None])[0], 1)


def _padded(rows: Tensor, left: int, right: int) -> Tensor:
    return torch.cat([rows[:1].expand(left, -1), rows, rows[-1:].expand(right, -1)])


def priors_beside(model: Path) -> Path:
    """Where the priors of a kaldi-nnet3 model are."""
    return model.with_name(model.name + ".priors")


def export_model(run: RunDirectory, out: Path, to: ModelFormat) -> tuple[float, int]:
    """Writes the network of a run, and compares what it says with the network itself.

    The priors of the states are written beside a kaldi-nnet3 model.

    Args:
        run: A run that has ended.
        out: The file to write; it must not exist.
        to: The format.

    Returns:
        The largest difference of a log posterior, and over how many frames.

    Raises:
        UserError: There is no model, a package is missing, or the export differs.
    """
    for_kaldi = to is ModelFormat.KALDI_NNET3
    for path in (out, priors_beside(out)) if for_kaldi else (out,):
        if os.path.lexists(path):
            raise UserError(f"{path} exists already; name another --out")
    if not out.parent.is_dir():
        raise UserError(f"cannot write {out}: there is no folder {out.parent}")
    network = TrainedNetwork(run)
    model = UtteranceModel(network).eval()
    if to is ModelFormat.ONNX:
        for package in ("onnx", "onnxscript", "onnxruntime"):
            import_package(package, extra="onnx")
    _check_kind(network, to)
    frames = _frames_of(run, network)
    facts = json.loads(run.model_description.read_text(encoding="utf-8"))
    write, read = {
        ModelFormat.ONNX: (_write_onnx, _read_onnx),
        ModelFormat.TORCH: (_write_torch, _read_torch),
        ModelFormat.KALDI_NNET3: (_write_nnet3, _read_nnet3),
    }[to]
    scratch = out.with_name(f".{out.name}.{secrets.token_hex(4)}")
    try:
        write(model, torch.from_numpy(frames[:50]), facts, scratch)
        difference = _largest_difference(network, read(scratch), frames)
        if not difference < _CLOSE:
            raise UserError(
                f"the model as {to.value} differs from the network by {difference:g}: "
                "please report this"
            )
        if for_kaldi:
            priors = np.exp(log_priors(run, network), dtype=np.float64)
            write_atomically(priors_beside(out), kaldi_vector(priors).encode())
        write_atomically(out, scratch.read_bytes())
    except OSError as error:
        raise UserError(f"cannot write {out}: {error.strerror or error}") from None
    finally:
        scratch.unlink(missing_ok=True)
    return difference, len(frames)


def _frames_of(run: RunDirectory, network: TrainedNetwork) -> Frames:
    """Held-out frames, where the run was made from speech; else noise."""
    if (run.path / ASSETS_FOLDER).is_dir():
        tuning_set = DecodingAssets.read(run.path).tuning_set
        if tuning_set is not None:
            return tuning_set.network[:_COMPARED]
    random = np.random.default_rng(0)
    return random.normal(size=(_COMPARED, network.dimension)).astype(np.float32)


def _largest_difference(
    network: TrainedNetwork, exported: Callable[[Frames], Frames], frames: Frames
) -> float:
    """Of utterances of other lengths than the one that it was made with, too."""
    shortest = 2 if network.subsampling == 1 else network.subsampling + 1
    pieces = [frames, frames[:shortest], frames[: len(frames) // 2 + 1]]
    return max(
        float(np.abs(exported(piece) - network.log_posteriors(piece)).max()) for piece in pieces
    )


def _check_kind(network: TrainedNetwork, to: ModelFormat) -> None:
    """Not every format has every network.

    A recurrent layer can be written where it is one operator, and not a loop over frames.
    """
    layers = [layer for layer in network.model.modules() if isinstance(layer, ProjectedLSTM)]
    if to is ModelFormat.KALDI_NNET3:
        if not isinstance(network.model, (DNN, TDNN)):
            raise UserError("kaldi-nnet3 is written of dnn and tdnn only: use --format onnx")
        if network.is_ctc:
            raise UserError(
                "kaldi-nnet3 is written of networks that tell states apart; this one was trained "
                "with CTC: use --format onnx"
            )
    elif to is ModelFormat.ONNX:
        if any(isinstance(layer.projection, nn.Linear) for layer in layers):
            raise UserError(
                "ONNX has no LSTM with a projection: train with --set network.projection=0"
            )
    elif layers:
        raise UserError(
            "torch.export fixes the number of frames of a recurrent network: use --format onnx"
        )


def _write_onnx(model: UtteranceModel, frames: Tensor, facts: dict[str, Any], path: Path) -> None:
    import onnx

    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            model,
            (frames,),
            dynamo=True,
            dynamic_shapes=_any_number_of_frames(model),
            input_names=["frames"],
            output_names=["log_posteriors"],
            verbose=False,
        )
    assert program is not None
    proto = program.model_proto
    onnx.helper.set_model_props(proto, {"unisono": json.dumps(facts)})
    onnx.save(proto, path)


def _read_onnx(path: Path) -> Callable[[Frames], Frames]:
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])

    def compute(frames: Frames) -> Frames:
        found: Frames = session.run(None, {"frames": frames})[0]
        return found

    return compute


def _any_number_of_frames(model: UtteranceModel) -> tuple[dict[int, Any]]:
    """The shape of the input; `torch.export` is imported when it is used, which takes long.

    It tells one output from several: where not every frame has one, there must be two.
    """
    least = 1 if model.subsampling == 1 else model.subsampling + 1
    return ({0: torch.export.Dim("frames", min=least)},)


def _write_torch(model: UtteranceModel, frames: Tensor, facts: dict[str, Any], path: Path) -> None:
    program = torch.export.export(model, (frames,), dynamic_shapes=_any_number_of_frames(model))
    with path.open("wb") as file:
        torch.export.save(program, file, extra_files={"unisono.json": json.dumps(facts)})


def _read_torch(path: Path) -> Callable[[Frames], Frames]:
    with path.open("rb") as file:
        loaded = torch.export.load(file).module()

    def compute(frames: Frames) -> Frames:
        with torch.no_grad():
            found: Frames = loaded(torch.from_numpy(frames)).numpy()
        return found

    return compute


def _write_nnet3(model: UtteranceModel, _: Tensor, __: dict[str, Any], path: Path) -> None:
    assert isinstance(model.model, (DNN, TDNN))
    write_nnet3(path, model.model, model.context, model.dimension)


def _read_nnet3(path: Path) -> Callable[[Frames], Frames]:
    try:
        return Nnet3(path).compute
    except ValueError as error:
        raise UserError(
            f"the model as kaldi-nnet3 cannot be read again: {error}; please report this"
        ) from None
