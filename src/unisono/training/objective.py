"""What a model is trained to do: its loss, and how well it does it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from unisono.config import Config, ObjectiveChoice
from unisono.data import UNLABELLED
from unisono.models import Takes, find

BLANK = 0
"""The output of CTC that stands for no phone; phone p, from 1, is output p."""


@dataclass(frozen=True)
class Measured:
    """Sums over each of some examples, or over each of their frames; the log-prob is in nats."""

    logprob: Tensor
    frames: Tensor
    """What the log-prob is divided by."""
    right: Tensor
    """Of the labels."""
    labels: Tensor


class Objective(Protocol):
    """What a model is trained to do."""

    def inputs(self, x: Tensor) -> Tensor:
        """The inputs of a minibatch as the model takes them."""

    def frames(self, y: Tensor) -> int:
        """What the loss of a minibatch is a mean over."""

    def loss(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        """The mean loss a frame of a minibatch."""

    def total(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        """The sum that `loss` is the mean of."""

    def measure(self, model: nn.Module, x: Tensor, y: Tensor) -> Measured:
        """How well a model does."""


def objective_of(config: Config) -> Objective:
    """The objective of a run."""
    if config.objective is ObjectiveChoice.CTC:
        return Ctc(one_by_one=find(config.model).takes is Takes.FRAMES)
    return FrameStates()


class FrameStates:
    """To tell the aligned state of each frame: cross entropy."""

    def inputs(self, x: Tensor) -> Tensor:
        """Frames or chunks, as they are."""
        return x

    def frames(self, y: Tensor) -> int:
        """Those that have a state: chunks may end behind their utterances."""
        return int((y != UNLABELLED).sum())

    def loss(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        """The mean over the frames that have a state."""
        return functional.cross_entropy(model(x).flatten(0, -2), y.flatten())

    def total(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        """The sum over them."""
        return functional.cross_entropy(model(x).flatten(0, -2), y.flatten(), reduction="sum")

    def measure(self, model: nn.Module, x: Tensor, y: Tensor) -> Measured:
        """Of each frame: its log-prob, and whether its state has the highest."""
        logits, y = model(x).flatten(0, -2), y.flatten()
        losses = functional.cross_entropy(logits, y, reduction="none")
        labelled = y != UNLABELLED
        return Measured(-losses, labelled, logits.argmax(1) == y, labelled)


class Ctc:
    """To tell the phones of each utterance, whenever they are said (Graves et al. 2006).

    The network gives probabilities of the phones and of a blank, y_t, at outputs t = 1 .. T. A path
    has one of them at each output; taking repetitions together and then blanks away leaves its
    phones. With all paths that leave the phones z of the transcript,

        loss = -log sum_{path -> z} prod_t y_t(path_t),

    here divided by T: so its gradient with respect to the logits of an output is as large as that
    of cross entropy, y_t less the share of each phone in these paths, and learning rates mean about
    the same. The log-prob is that of the whole sequence divided by T. It must not be compared with
    that of states: it gives nothing away on when each phone is said.

    Accuracy is (N - S - D - I) / N over the phones of a greedy path, the best one at each output:
    one less the phone error rate. It may be below 0.
    """

    def __init__(self, *, one_by_one: bool) -> None:
        """Of a model that takes rows of frames (`one_by_one`), or whole utterances."""
        self._one_by_one = one_by_one

    def inputs(self, x: Tensor) -> Tensor:
        """Utterances, or all their rows one below the other."""
        return x.flatten(0, 1) if self._one_by_one else x

    def frames(self, y: Tensor) -> int:
        """The outputs of all utterances."""
        return int(y[:, 0].sum())

    def loss(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        """The mean over the outputs."""
        return self.total(model, x, y) / self.frames(y)

    def total(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        """The sum over the utterances."""
        return self._losses(self._log_posteriors(model, x), y).sum()

    def measure(self, model: nn.Module, x: Tensor, y: Tensor) -> Measured:
        """Of each utterance."""
        scores = self._log_posteriors(model, x)
        best = scores.argmax(2).tolist()
        right, labels = [], []
        for path, (outputs, *phones) in zip(best, y.tolist(), strict=True):
            said = [phone for phone in phones if phone != BLANK]
            labels.append(len(said))
            right.append(len(said) - edit_distance(said, collapse(path[:outputs])))
        counts = (torch.tensor(each, device=y.device) for each in (right, labels))
        return Measured(-self._losses(scores, y), y[:, 0], *counts)

    def _log_posteriors(self, model: nn.Module, x: Tensor) -> Tensor:
        """Utterances x outputs x (blank and phones), in float32 whatever the model computes in."""
        logits = model(self.inputs(x)).float()
        if self._one_by_one:
            logits = logits.unflatten(0, x.shape[:2])
        return functional.log_softmax(logits, 2)

    @staticmethod
    def _losses(scores: Tensor, y: Tensor) -> Tensor:
        labels = y[:, 1:]
        return functional.ctc_loss(
            scores.transpose(0, 1),
            labels,
            y[:, 0],
            (labels != BLANK).sum(1),
            blank=BLANK,
            reduction="none",
        )


def collapse(path: list[int]) -> list[int]:
    """The phones of a path: repetitions are taken together, then blanks away."""
    firsts = (unit for at, unit in enumerate(path) if at == 0 or path[at - 1] != unit)
    return [unit for unit in firsts if unit != BLANK]


def edit_distance(reference: list[int], found: list[int]) -> int:
    """The fewest substitutions, deletions and insertions from one sequence to another."""
    row = list(range(len(found) + 1))
    for at, wanted in enumerate(reference, start=1):
        diagonal, row[0] = row[0], at
        for place, unit in enumerate(found, start=1):
            diagonal, row[place] = (
                row[place],
                min(row[place] + 1, row[place - 1] + 1, diagonal + (unit != wanted)),
            )
    return row[-1]
