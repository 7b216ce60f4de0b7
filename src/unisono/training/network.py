"""The network of a finished run, to be listened with."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch.nn import functional

from unisono.events import UserError
from unisono.models import build
from unisono.runs.directory import RunDirectory
from unisono.training.shapes import FRAME_MODEL

Frames = NDArray[np.float32]
_SIZE = 4096


class Network:
    """A run's network, as it was when training ended.

    Attributes:
        context: Neighbours that it sees on each side of a frame.
    """

    def __init__(self, run: RunDirectory) -> None:
        """Reads the model of a run.

        Raises:
            UserError: There is none yet, or it is broken.
        """
        if not (run.model.is_file() and run.model_description.is_file()):
            raise UserError(f"{run.path} has no model yet: train it to the end")
        try:
            facts = json.loads(run.model_description.read_text(encoding="utf-8"))
            self.context = int(facts.pop("context"))
            name = facts.pop("model")
            for other in ("prep", "chunk"):
                facts.pop(other, None)
            if name != FRAME_MODEL:
                raise UserError(f"{run.path} has a {name}, and decode knows {FRAME_MODEL} alone")
            self._model = build(name, **facts)
            self._model.load_state_dict(load_file(run.model))
        except (OSError, ValueError, KeyError, TypeError, RuntimeError, SafetensorError) as error:
            reason = " ".join(str(error).split())
            raise UserError(f"the model of {run.path} is broken: {reason}") from None
        self._model.eval()

    def fingerprint(self) -> str:
        """The sha256 of its parameters."""
        digest = hashlib.sha256()
        for tensor in self._model.state_dict().values():
            digest.update(tensor.numpy().tobytes())
        return digest.hexdigest()

    def log_posteriors(self, frames: Frames) -> Frames:
        """Log posteriors of the states in each frame of an utterance, normalised by speaker."""
        return np.concatenate([part.numpy() for part in self._parts(frames)])

    def mean_posteriors(self, windows: torch.Tensor) -> NDArray[np.float64]:
        """The posterior of each state, averaged over windows of frames."""
        total = torch.zeros(0)
        with torch.no_grad():
            for first in range(0, len(windows), _SIZE):
                logits = self._model(windows[first : first + _SIZE])
                sums = functional.softmax(logits, dim=1).double().sum(0)
                total = sums if not len(total) else total + sums
        return np.asarray(total.numpy() / len(windows))

    def _parts(self, frames: Frames) -> Iterator[torch.Tensor]:
        ends = [frames[:1]] * self.context, [frames[-1:]] * self.context
        padded = torch.from_numpy(np.concatenate([*ends[0], frames, *ends[1]]))
        width, dimension = 2 * self.context + 1, frames.shape[1]
        windows = padded.as_strided((len(frames), width * dimension), (dimension, 1))
        with torch.no_grad():
            for first in range(0, len(windows), _SIZE):
                logits = self._model(windows[first : first + _SIZE])
                yield functional.log_softmax(logits, dim=1)
