"""What a machine has, as far as training needs to know."""

from __future__ import annotations

import importlib.util
import os
import platform
import resource
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import torch

import unisono

_SHARED_MEMORY = Path("/dev/shm")
_EXTRAS = {
    "cluster": ("ray",),
    "speech": (
        "soundfile",
        "soxr",
        "kaldi_native_fbank",
        "kaldifst",
        "kaldi_decoder",
        "kaldialign",
    ),
    "demo": ("espeakng_loader",),
    "mpi": ("mpi4py",),
}
"""The modules of each extra of the package."""
_GIB = 2**30
_INTERFACES = Path("/sys/class/net")


@dataclass(frozen=True)
class Interface:
    """A network interface."""

    name: str
    up: bool
    megabits: int | None
    """Its speed, where the kernel tells one."""


@dataclass(frozen=True)
class Disk:
    """Room in a folder, in bytes."""

    folder: str
    free: int
    wanted: int
    """What one would like to have there."""


@dataclass(frozen=True)
class Machine:
    """One machine, as it was found; sizes in bytes."""

    host: str
    unisono: str
    python: str
    torch: str
    gpus: tuple[str, ...] = ()
    cores: int = 1
    """Those that this process may use."""
    cores_of_all: int = 1
    memory: int = 0
    memory_free: int = 0
    shared_memory: int | None = None
    """Room that is left in /dev/shm; None: there is none."""
    files: int = 0
    """Files that a process may have open."""
    files_most: int = 0
    """The same, at most, if it asks for more."""
    interfaces: tuple[Interface, ...] = field(default=())
    disks: tuple[Disk, ...] = ()
    """Where runs and their journals are written: the current folder, and the temporary one."""
    extras: tuple[tuple[str, str], ...] = ()
    """The optional parts of Unisono, and the first package that each lacks, or nothing."""
    anonymous_memory: bool = True
    """Whether memory without a name can be shared, as learners of one machine do."""


def survey() -> Machine:
    """Looks at the machine that this process is on."""
    total, free = memory()
    files, files_most = resource.getrlimit(resource.RLIMIT_NOFILE)
    return Machine(
        host=platform.node(),
        unisono=unisono.__version__,
        python=platform.python_version(),
        torch=torch.__version__,
        gpus=_gpus(),
        cores=len(os.sched_getaffinity(0)),
        cores_of_all=os.cpu_count() or 1,
        memory=total,
        memory_free=free,
        shared_memory=shutil.disk_usage(_SHARED_MEMORY).free if _SHARED_MEMORY.is_dir() else None,
        files=files,
        files_most=files_most,
        interfaces=_interfaces(),
        disks=(_disk(Path.cwd(), 10 * _GIB), _disk(Path(tempfile.gettempdir()), _GIB)),
        extras=_extras(),
        anonymous_memory=_has_anonymous_memory(),
    )


def _disk(folder: Path, wanted: int) -> Disk:
    return Disk(str(folder), shutil.disk_usage(folder).free, wanted)


def _extras() -> tuple[tuple[str, str], ...]:
    found = []
    for extra, modules in _EXTRAS.items():
        missing = (name for name in modules if importlib.util.find_spec(name) is None)
        found.append((extra, next(missing, "")))
    return tuple(found)


def _gpus() -> tuple[str, ...]:
    if not torch.cuda.is_available():
        return ()
    found = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
    return tuple(f"{gpu.name}, {gpu.total_memory / 2**30:.0f} GiB" for gpu in found)


def memory() -> tuple[int, int]:
    """Bytes in all, and free: of the machine, or of the container, if that has less."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    sizes = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines}
    total, free = sizes["MemTotal"], sizes["MemAvailable"]
    limit, used = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")
    if limit.is_file() and used.is_file() and limit.read_text().strip() != "max":
        most = int(limit.read_text())
        total, free = min(total, most), min(free, most - int(used.read_text()))
    return total, free


def _interfaces() -> tuple[Interface, ...]:
    found = []
    for name in sorted(entry.name for entry in _INTERFACES.iterdir()):
        state = _read(_INTERFACES / name / "operstate")
        speed = _read(_INTERFACES / name / "speed")
        megabits = int(speed) if speed.isdigit() else None
        found.append(Interface(name, state == "up" or name == "lo", megabits))
    return tuple(found)


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _has_anonymous_memory() -> bool:
    try:
        os.close(os.memfd_create("unisono-doctor", os.MFD_CLOEXEC))
    except OSError:
        return False
    return True
