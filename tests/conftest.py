"""What tests in several packages share."""

from __future__ import annotations

import faulthandler
import logging
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import torch
from xdist.scheduler import LoadScopeScheduling

from support.commands import Command
from support.forkserver import prepare_forks
from unisono.data import synthesise

_STDERR = pytest.StashKey[int]()
"""The descriptor for stacks; a test that runs has another one captured."""


def pytest_configure(config: pytest.Config) -> None:
    """The models of tests are small: threads of a busy machine would wait for each other."""
    config.stash[_STDERR] = os.dup(sys.stderr.fileno())
    torch.set_num_threads(1)
    prepare_forks()
    hypothesis.settings.register_profile("unisono", deadline=None)  # a busy machine is no error
    hypothesis.settings.load_profile("unisono")


class _RayTogether(LoadScopeScheduling):
    """Hands tests out singly, but for those on Ray: a machine has room for one such cluster."""

    def _split_scope(self, nodeid: str) -> str:
        return "ray" if "/test_cluster_" in nodeid else nodeid


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """For ``--dist loadscope``, which `make test-long` asks for."""
    return _RayTogether(config, log) if config.getvalue("dist") == "loadscope" else None


_GRACE_S = 60.0


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[Any]:
    """A test that goes on after its time limit, in a clean-up that waits, ends its process.

    It prints the stacks of all threads; pytest-xdist names the test, and starts another process.
    """
    marker = item.get_closest_marker("timeout")
    limit = float(marker.args[0] if marker else item.config.getini("timeout"))
    stderr = item.config.stash[_STDERR]
    faulthandler.dump_traceback_later(limit + _GRACE_S, exit=True, file=stderr)
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


@pytest.fixture(autouse=True)
def _same_process() -> Iterator[None]:
    """A command run in this process leaves threads of torch and a handler of the log behind."""
    yield
    torch.set_num_threads(1)
    log = logging.getLogger("unisono")
    log.handlers.clear()
    log.propagate = True
    log.setLevel(logging.NOTSET)


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real speech: UNISONO_SHARED, or `shared` beside the checkout."""
    beside = Path(__file__).resolve().parents[2] / "shared"
    folder = Path(os.environ.get("UNISONO_SHARED", beside))
    if not folder.is_dir():
        pytest.skip(f"no shared data at {folder}: set UNISONO_SHARED")
    return folder


@pytest.fixture(scope="session")
def prep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small prepared data: 8 training speakers of 12, some 19,000 frames."""
    path = tmp_path_factory.mktemp("data") / "prep"
    synthesise(
        path,
        speakers=12,
        utterances_per_speaker=10,
        frames_per_utterance=240,
        states=30,
        dimension=20,
        seed=1,
        noise=1.0,
    )
    return path


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Command]]:
    """Starts commands in the test's own folder; whatever happens, none is left."""
    commands: list[Command] = []

    def run(*arguments: object, environment: dict[str, str] | None = None) -> Command:
        words = [str(a) for a in arguments]
        commands.append(Command(*words, cwd=tmp_path, environment=environment))
        return commands[-1]

    yield run
    for command in commands:
        command.end()
