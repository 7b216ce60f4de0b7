"""What a shell is told when the user presses Tab."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from unisono import models
from unisono.cli.app import app
from unisono.config import describe_keys
from unisono.strategies import registry

Complete = Callable[..., list[str]]


@pytest.fixture(params=["bash", "zsh", "fish"])
def complete(
    request: pytest.FixtureRequest,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Complete:
    """The words that a shell offers after a line, by the variables that its script sets."""

    def call(line: str) -> list[str]:
        monkeypatch.setenv("_UNISONO_COMPLETE", f"complete_{request.param}")
        monkeypatch.setenv("COMP_WORDS", line)
        monkeypatch.setenv("COMP_CWORD", str(len(line.split(" ")) - 1))
        monkeypatch.setenv("_TYPER_COMPLETE_ARGS", line)
        monkeypatch.setenv("_TYPER_COMPLETE_FISH_ACTION", "get-args")
        with pytest.raises(SystemExit) as ended:
            app([], prog_name="unisono")
        assert ended.value.code == 0
        text = capsys.readouterr().out
        if request.param == "zsh":
            return re.findall(r'^"([^"]+)"', text.partition("((")[2], re.M)
        return [line.partition("\t")[0] for line in text.splitlines()]

    return call


def test_commands(complete: Complete) -> None:
    assert complete("unisono de") == ["demo", "decode"]


def test_names(complete: Complete) -> None:
    assert complete("unisono train --strategy ") == registry.names()
    assert complete("unisono train --model ") == models.names()
    assert complete("unisono train --optimizer ng") == ["ng-sgd"]


def test_names_after_a_comma(complete: Complete) -> None:
    offered = ["averaging,gossip-fixed", "averaging,gossip-random"]
    assert complete("unisono compare --strategies averaging,go") == offered
    assert complete("unisono simulate --strategies averaging,go") == offered


def test_keys(complete: Complete) -> None:
    rates = [f"{key}=" for key, _, _ in describe_keys() if key.startswith("rate.")]
    assert len(rates) > 3
    assert complete("unisono train --set rate.") == rates
