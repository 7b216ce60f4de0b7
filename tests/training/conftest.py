from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.commands import Command
from unisono.data import synthesise


@pytest.fixture(scope="session")
def prep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small prepared data: 10 training speakers, some 24,000 frames."""
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
