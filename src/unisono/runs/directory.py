"""A run's directory: its files, and how they are read and written."""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from unisono.config import Config, dump, load
from unisono.errors import UserError
from unisono.fabric.files import retry_while_full, take_lock
from unisono.runs.metrics import Event, cut_torn_line, read_metrics
from unisono.runs.summary import Summary

ROOM_NEEDED = 200 * 2**20
"""Free bytes that a run needs at the start, for logs and checkpoints of a small model."""


@dataclass(frozen=True)
class _File:
    name: str

    def __get__(self, run: RunDirectory, owner: type) -> Path:
        return run.path / self.name


@dataclass(frozen=True)
class RunDirectory:
    """The files of one run. Use `create` or `open`; the file names are a promise to users."""

    path: Path

    config = _File("config.toml")
    """The complete configuration, TOML."""
    metrics = _File("metrics.jsonl")
    """Events, one JSON object per line."""
    summary = _File("summary.json")
    """Results, JSON; written at the end."""
    model = _File("model.safetensors")
    """The parameters of the consensus, safetensors."""
    initial_model = _File("initial.safetensors")
    """The parameters that training started from, where another run's model was named."""
    model_description = _File("model.json")
    """What is needed to rebuild the model, JSON."""
    model_card = _File("MODEL_CARD.md")
    """A description of the model for people, Markdown."""
    checkpoints = _File("checkpoints")
    """The folder of checkpoints."""
    report = _File("report.html")
    """The curves, one HTML file."""
    logs = _File("logs")
    """The folder of the learners' logs."""
    wanted = _File("learners.txt")
    """How many learners there should be by now, where they ramp up."""
    control = _File("control.json")
    """Where a running run takes requests, JSON."""

    @classmethod
    def create(cls, path: Path, config: Config, *, resume: bool = False) -> RunDirectory:
        """Makes the directory and writes its complete configuration.

        Args:
            path: where; folders above it are made too.
            config: what the run does; written to config.toml.
            resume: go on in a directory that exists: metrics and checkpoints stay, and what a
                kill left half written at the end of the metrics is cut off.

        Raises:
            UserError: the path is taken, cannot be written, or has too little room.
        """
        run = cls(path)
        if os.path.lexists(path):
            if not resume:
                raise UserError(f"{path} exists already; name another --out, or add --resume")
            if not os.path.isfile(run.config) and not _is_empty_folder(path):
                raise UserError(f"{path} is not a run to resume: it has no {run.config.name}")
        check_room(path)
        try:
            run.path.mkdir(parents=True, exist_ok=resume)
            write_atomically(run.config, dump(config).encode())
            run.checkpoints.mkdir(exist_ok=True)
            run.logs.mkdir(exist_ok=True)
            if run.metrics.exists():
                cut_torn_line(run.metrics)
        except OSError as error:
            raise UserError(f"cannot write {error.filename}: {error.strerror}") from None
        return run

    @classmethod
    def open(cls, path: Path) -> RunDirectory:
        """Finds a run that exists.

        Raises:
            UserError: there is no run at the path.
        """
        run = cls(path)
        if not run.config.is_file():
            reason = f"it has no {run.config.name}" if path.is_dir() else "no such directory"
            raise UserError(f"{path} is not a run: {reason}")
        return run

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Inside, no other process trains this run.

        Raises:
            UserError: another one does.
        """
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            descriptor = os.open(self.metrics, flags, 0o644)
        except OSError as error:
            raise UserError(f"cannot write {self.metrics}: {error.strerror}") from None
        try:
            if not take_lock(descriptor):
                raise UserError(f"{self.path} is being trained by another process")
            yield
        finally:
            with suppress(OSError):  # forks have the descriptor too
                fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)

    def log(self, number: int, role: str = "learner") -> Path:
        """Returns where one learner, or server, writes its own log."""
        return self.logs / f"{role}-{number}.log"

    def write_wanted(self, learners: int) -> None:
        write_atomically(self.wanted, str(learners).encode())

    def read_wanted(self) -> int:
        """Reads how many learners were asked for; 0 where nobody has.

        Raises:
            UserError: the file is damaged.
        """
        try:
            return int(self.wanted.read_text())
        except FileNotFoundError:
            return 0
        except ValueError:
            raise UserError(f"{self.wanted} is damaged: it must hold a number") from None

    def read_config(self) -> Config:
        return load(self.config, [], {})

    def read_metrics(self) -> list[Event]:
        """Reads metrics.jsonl; nothing where it does not exist yet."""
        return read_metrics(self.metrics) if self.metrics.exists() else []

    def remove_untrained(self) -> None:
        """Removes the directory, unless something in it was trained."""
        trained = self.model.exists() or any(self.checkpoints.glob("*"))
        if not trained and not self.logged_bytes():
            shutil.rmtree(self.path, ignore_errors=True)

    def logged_bytes(self) -> int:
        """How long the learners' logs are: they grow with every minibatch that is trained."""
        return sum(log.stat().st_size for log in self.logs.glob("learner-*.log"))

    def read_summary(self) -> Summary | None:
        """Reads summary.json; None while the run has not ended."""
        try:
            return Summary.from_json(self.summary.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise UserError(f"cannot read {self.summary}: {error.strerror}") from None
        except ValueError as error:
            raise UserError(f"{self.summary} is not a summary of a run: {error}") from None

    def write_summary(self, summary: Summary) -> None:
        write_atomically(self.summary, summary.to_json().encode())


@dataclass(frozen=True)
class Earlier:
    """The state of a run before it was resumed."""

    run: RunDirectory
    config: bytes
    metrics_bytes: int
    logged_bytes: int

    @classmethod
    def of(cls, run: RunDirectory) -> Earlier | None:
        """Reads the state of a run; None: there is no run yet."""
        try:
            config = run.config.read_bytes()
            size = run.metrics.stat().st_size if run.metrics.exists() else 0
            return cls(run, config, size, run.logged_bytes())
        except OSError:
            return None

    def put_back(self) -> None:
        """Restores that state, unless the run was trained since."""
        if self.run.logged_bytes() != self.logged_bytes:
            return
        with suppress(OSError, UserError):
            write_atomically(self.run.config, self.config)
            if self.run.metrics.exists():
                os.truncate(self.run.metrics, self.metrics_bytes)


def write_atomically(path: Path, data: bytes, patience_s: float = 0.0) -> None:
    """Writes a file so that a reader, or a machine that loses power, finds old or new, whole.

    The data is on disk before the name points to it, and the name before this returns. A disk that
    is full is tried again for ``patience_s`` seconds.

    Raises:
        UserError: the file cannot be written, for example on a full disk.
    """
    try:
        retry_while_full(partial(_replace, path, data), path, patience_s)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from None


def _replace(path: Path, data: bytes) -> None:
    sibling = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        # Not tempfile: its files are private to the user, and runs are shared.
        with open(sibling, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(sibling, path)
    except BaseException:
        sibling.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _is_empty_folder(path: Path) -> bool:
    try:
        return not os.listdir(path)
    except OSError:
        return False


def check_room(path: Path) -> None:
    """Asks the nearest folder that exists for leave to write and for room."""
    parent = path.absolute()
    while not os.path.isdir(parent):
        if os.path.lexists(parent):
            raise UserError(f"cannot make {path}: {parent} is not a directory")
        parent = parent.parent
    if not os.access(parent, os.W_OK | os.X_OK):
        raise UserError(f"cannot make {path}: {parent} is not writable by you")
    free = shutil.disk_usage(parent).free
    if free < ROOM_NEEDED:
        megabytes = f"{free >> 20} MB are free, {ROOM_NEEDED >> 20} MB are needed"
        raise UserError(f"too little room for {path}: {megabytes}; free some or move --out")
