"""The network of a finished run, to be listened with."""

from __future__ import annotations

import hashlib
import json

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch.nn import functional

from unisono.errors import UserError
from unisono.models import build
from unisono.runs.directory import RunDirectory
from unisono.training.builders import FRAME_MODEL

Frames = NDArray[np.float32]
_LONGEST = 4096
"""Frames that are listened to at a time; longer utterances are cut."""


class TrainedNetwork:
    """A run's network, as it was when training ended.

    It hears whole utterances, with as many frames before the first and behind the last one as it
    was trained with; there the first and the last frame stand in, as in training. Utterances of
    more than 4096 frames are cut, each piece with its true neighbours: that changes no posterior
    of a DNN or TDNN, and lets a recurrent network forget what lies farther back.
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
            context, name = int(facts.pop("context")), facts.pop("model")
            for other in ("prep", "chunk"):
                facts.pop(other, None)
            self._model = build(name, **facts)
            self._model.load_state_dict(load_file(run.model))
        except (OSError, ValueError, KeyError, TypeError, RuntimeError, SafetensorError) as error:
            reason = " ".join(str(error).split())
            raise UserError(f"the model of {run.path} is broken: {reason}") from None
        self._one_by_one = name == FRAME_MODEL
        left, right = (getattr(self._model, side, context) for side in ("left", "right"))
        self._left, self._right = int(left), int(right)
        self._model.eval()

    def fingerprint(self) -> str:
        """The sha256 of its parameters."""
        digest = hashlib.sha256()
        for tensor in self._model.state_dict().values():
            digest.update(tensor.numpy().tobytes())
        return digest.hexdigest()

    def log_posteriors(self, frames: Frames) -> Frames:
        """Log posteriors of the states in each frame of an utterance, normalised by speaker."""
        padded = torch.from_numpy(
            np.concatenate(
                [frames[:1].repeat(self._left, 0), frames, frames[-1:].repeat(self._right, 0)]
            )
        )
        around = self._left + self._right
        pieces = []
        with torch.no_grad():
            for first in range(0, len(frames), _LONGEST):
                piece = padded[first : first + _LONGEST + around]
                logits = self._logits(piece, len(piece) - around)
                pieces.append(functional.log_softmax(logits, dim=1).numpy())
        return np.concatenate(pieces)

    def _logits(self, padded: torch.Tensor, frames: int) -> torch.Tensor:
        if not self._one_by_one:
            together: torch.Tensor = self._model(padded[None])[0]
            return together
        dimension = padded.shape[1]
        width = (self._left + 1 + self._right) * dimension
        apart: torch.Tensor = self._model(padded.as_strided((frames, width), (dimension, 1)))
        return apart
