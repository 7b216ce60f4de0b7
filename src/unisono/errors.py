"""What the packages tell each other without importing each other: errors that a user sees."""

from __future__ import annotations

from enum import Enum
from typing import ClassVar

RESUME = "go on from a checkpoint with --resume (in a script: resume=True)"


class Cause(Enum):
    """Why a run failed."""

    DIVERGED = "diverged"
    """Steps or parameters were not finite, or the model became clearly worse."""
    LEARNER_LOST = "learner-lost"
    """A learner was lost, and the set of learners may not change."""
    MODEL_LOST = "model-lost"
    """Every learner that had the model is gone."""
    DISK_FULL = "disk-full"
    """What must be on disk could not be written."""
    USER_ERROR = "user-error"
    """Something that the user can mend."""
    EXCEPTION = "exception"
    """A bug, of the user's program or of this one."""


class UserError(Exception):
    """Something that the user can mend. The text is one line: what, where, and what to do."""

    cause: ClassVar[Cause] = Cause.USER_ERROR


class Diverged(UserError):  # noqa: N818
    """A learner's steps or parameters are not finite, or the consensus is clearly worse.

    The learner leaves, and nothing of it is shared; ``unisono train`` goes back to a checkpoint.
    """

    cause = Cause.DIVERGED
    _ADVICE: ClassVar[str] = ": lower the learning rate, or look at the data"

    def __init__(self, what: str) -> None:
        self.what = what.removesuffix(self._ADVICE)
        super().__init__(self.what + self._ADVICE)


class ProcessLost(UserError):  # noqa: N818
    """A further process of this learner was killed: the learner ends, and the others go on."""
