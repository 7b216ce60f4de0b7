"""What a learner of a cluster does: the training of a run, or a user's own script."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import unisono
from unisono.data import Prep
from unisono.errors import UserError
from unisono.launch.script_main import run_script
from unisono.runs.directory import RunDirectory
from unisono.training.worker import Worker


class LearnerJob(Protocol):
    """Travels to the machine that does it."""

    def prepare(self) -> None:
        """Gets everything ready; ``UserError`` if this machine cannot do the work."""
        ...

    def run(self) -> None:
        """Does it, as one learner."""
        ...


@dataclass
class Training:
    """One learner of ``unisono train``."""

    run_path: str
    resume: bool
    prep: str
    fingerprint: str
    """Of PREP, as the machine has it that began the run."""
    version: str = unisono.__version__
    _worker: Worker | None = field(default=None, init=False, repr=False)

    def prepare(self) -> None:
        """Looks whether the run and PREP are here, and loads them."""
        check_version(self.version)
        if not os.path.isfile(RunDirectory(Path(self.run_path)).config):
            raise UserError(
                f"{self.run_path} cannot be seen: --out must be on storage that all machines share"
            )
        mine = Prep.open(Path(self.prep)).fingerprint
        if mine != self.fingerprint:
            raise UserError(
                f"{self.prep} differs: its fingerprint is {mine[:12]}, and "
                f"{self.fingerprint[:12]} where the run was started; copy it again"
            )
        self._worker = Worker(RunDirectory.open(Path(self.run_path)), resume=self.resume)

    def run(self) -> None:
        """Trains to the end."""
        assert self._worker is not None
        self._worker.run()


@dataclass
class Script:
    """One learner of ``unisono launch``."""

    path: str
    arguments: tuple[str, ...]
    digest: str
    folder: str
    """Where the command was given: relative names mean the same on all machines."""
    version: str = unisono.__version__

    @classmethod
    def of(cls, path: Path, arguments: tuple[str, ...]) -> Script:
        """The script as it is on this machine."""
        return cls(str(path.resolve()), arguments, _digest(path), os.getcwd())

    def prepare(self) -> None:
        """Looks whether the same script is here."""
        check_version(self.version)
        if not Path(self.path).is_file():
            raise UserError(f"there is no {self.path}: it must be on every machine, or be shared")
        if _digest(Path(self.path)) != self.digest:
            raise UserError(f"{self.path} differs from where the run was started: copy it again")
        if Path(self.folder).is_dir():
            os.chdir(self.folder)

    def run(self) -> None:
        """As ``python SCRIPT ARGUMENTS``."""
        run_script(self.path, self.arguments)


def check_version(wanted: str) -> None:
    """All machines run the same Unisono."""
    if unisono.__version__ != wanted:
        raise UserError(
            f"Unisono is {unisono.__version__} here and {wanted} where the run was started: "
            "install the same everywhere"
        )


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
