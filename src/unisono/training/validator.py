"""Scores the consensus on held-out frames while the training goes on.

A score of 10,000 frames costs as much as training on 4,300 (0.43 of a frame's training each, on a
CPU). Made eight times an epoch by one learner, while the others of a synchronous strategy wait for
it, that would be 10% of the time of 8 learners on 8 hours of speech. So on a CPU the parameters are
copied (milliseconds), and a thread of the lowest priority scores the copy: where a core is idle it
costs nothing, elsewhere at most 1.5% of the learner's core. Where the last score is not
done when the next is due, the learner waits for it, as long as it has waited less than 1% of the
time, divided by the number of learners; else this one is left out. With an explicit
``validation.every`` none is left out, and the learner waits.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import dataclass, field

import numpy as np
from torch import nn

from unisono.config import Config
from unisono.fabric.local.background import Background, now
from unisono.training.builders import Examples, examples_in
from unisono.training.display import held_out
from unisono.training.objective import objective_of
from unisono.training.validation import HALVES, halves, merge, score, score_groups

TIMES_AN_EPOCH = 8
"""Validations an epoch, where the configuration does not say how many."""
MOST_WAITING = 0.01
"""Share of the time that learners may wait for scores, all together."""


@dataclass
class Validation:
    """One validation, under way or done.

    Attributes:
        progress: of the run when the parameters were copied, 0 to 1.
        taken: when that was.
        clock: by which that was.
        stalled_s: how long this learner's training stood still for it.
        fields: of its event, what is scored.
        seconds: how long the scoring took.
    """

    progress: float
    taken: float
    clock: Callable[[], float] = now
    stalled_s: float = 0.0
    fields: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0

    def event(self) -> dict[str, float]:
        """The fields of its event, told now."""
        told = {
            "progress": self.progress,
            "age_s": self.clock() - self.taken,
            "seconds": self.seconds,
            "stalled_s": self.stalled_s,
        }
        return {**self.fields, **told}

    def line(self) -> str:
        """For the terminal."""
        return held_out(self.progress, self.fields)


class Validator:
    """Validations of one learner, one at a time.

    Args:
        config: of the run.
        copy: a model of the same shape as the one that is trained, to score.
        heldout: examples of the held-out speakers.
        train: those of the speakers that are trained on.
        learners: how many learners there are.
        virtual_clock: seconds, where time is simulated; then each score is made at once, and takes
            none of them.
    """

    def __init__(
        self,
        config: Config,
        copy: nn.Module,
        heldout: Examples,
        train: Examples,
        learners: int,
        virtual_clock: Callable[[], float] | None = None,
    ) -> None:
        self._objective = objective_of(config)
        self._copy = copy
        self._clock = virtual_clock or now
        self._device = next(copy.parameters()).device
        self._heldout = heldout
        self._train = train
        self._apart = config.validation.halves
        self.groups = halves(heldout) if self._apart else np.zeros(len(heldout), dtype=np.int64)
        asked = examples_in(config, config.validation.examples)
        self._examples = min(asked or len(heldout), len(heldout))
        self._most_waiting = MOST_WAITING / learners
        # Beside a capture of CUDA graphs no other thread may use the device.
        beside = self._device.type == "cpu" and virtual_clock is None
        self._background = Background() if beside else None
        self._began = self._due = self._clock()
        self._waited = self._stalled = 0.0
        self._pending: Future[Validation] | None = None

    @property
    def ready(self) -> bool:
        """Whether a validation is done that was not taken yet."""
        return self._pending is not None and self._pending.done()

    def take(self) -> Validation | None:
        """The validation under way, when it is done; None: there is none."""
        pending, self._pending = self._pending, None
        return None if pending is None else pending.result()

    def can_start(self, *, skip: bool) -> bool:
        """One is due: whether it may begin now.

        Waits for the one under way; if this one may be left out (``skip``), within limits.
        """
        self._due = self._clock()
        if self._pending is None or self._pending.done():
            return True
        left = self._most_waiting * (self._due - self._began) - self._waited
        wait([self._pending], max(0.0, left) if skip else None)
        waited = self._clock() - self._due
        self._waited += waited
        if self._pending.done():
            return True
        self._stalled += waited
        return False

    def start(self, model: nn.Module, progress: float, *, train: bool) -> None:
        """Copies the model's parameters, and begins to score them; after ``can_start``.

        With ``train`` as many training frames are scored, too.
        """
        assert self._pending is None, "the last one was not taken"
        validation = Validation(progress, self._clock(), self._clock)
        self._copy.load_state_dict(model.state_dict())
        if self._background is None:
            self._pending = Future()
            self._pending.set_result(self._score(validation, train))
        else:
            self._pending = self._background.submit(lambda: self._score(validation, train))
        validation.stalled_s = self._stalled + self._clock() - self._due
        self._stalled = 0.0

    def score_now(self, model: nn.Module) -> Validation:
        """Scores a model itself, training frames included: at the end there is nothing else."""
        validation = Validation(1.0, self._clock(), self._clock)
        return self._score(validation, True, model)

    def close(self) -> None:
        """Waits for what is under way."""
        if self._background is not None:
            self._background.close()

    def _score(
        self, validation: Validation, train: bool, model: nn.Module | None = None
    ) -> Validation:
        began = self._clock()
        scored = model or self._copy
        judge = self._objective
        parts = score_groups(
            judge, scored, self._heldout, self.groups, self._examples, self._device
        )
        whole = merge(parts)
        fields = {"logprob": whole.logprob, "accuracy": whole.accuracy}
        if train:
            seen = score(judge, scored, self._train, self._examples, self._device)
            fields |= {"train_logprob": seen.logprob, "train_accuracy": seen.accuracy}
        for name, half in zip(HALVES, parts, strict=True) if self._apart else ():
            fields |= {f"{name}_logprob": half.logprob, f"{name}_accuracy": half.accuracy}
        validation.fields = fields
        validation.seconds = self._clock() - began
        return validation
