"""`unisono demo`: the whole way, on speech made on the spot."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path
from typing import Annotated

import typer

from unisono.training import demo as training

_CLEAR = "\r\x1b[K"


def demo(
    out: Annotated[
        Path, typer.Option(help="Where to put speech, prepared data and run; must not exist.")
    ] = Path("demo-run"),
) -> None:
    """Make speech on the spot, align it, train 2 learners, and recognise voices never heard."""
    for line in training.demo(out, _program(), _say, _pass):
        _say(line)


def _say(line: str) -> None:
    """A line that stays, in the place of the one that passes."""
    typer.echo(f"{_CLEAR}{line}" if sys.stdout.isatty() else line)


def _pass(line: str) -> None:
    """A line that the next one replaces: only where somebody watches."""
    if sys.stdout.isatty():
        width = shutil.get_terminal_size().columns - 1
        typer.echo(f"{_CLEAR}{'     ' + line:.{width}}", nl=False)


def _program() -> str:
    """What a user types to run this program: its name, where the shell finds it."""
    started = Path(sys.argv[0])
    if started.name != "unisono":
        return shlex.join([sys.executable, "-m", "unisono"])
    found = shutil.which("unisono")
    known = found is not None and Path(found).resolve() == started.resolve()
    return "unisono" if known else shlex.quote(str(started))
