"""Options that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

from unisono.cli.completion import keys

WATCH_TOKEN = "UNISONO_WATCH_TOKEN"
"""The environment variable with the token of live pages."""

Verbose = Annotated[bool, typer.Option("--verbose", help="Log what learners and coordinator do.")]
Epochs = Annotated[int | None, typer.Option(help="Passes over the data.", show_default="3")]
Seeds = Annotated[int, typer.Option(help="Runs of each kind, with different seeds.", min=1)]
Sets = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Any key of a run's config.toml; `unisono train --keys` lists them.",
        autocompletion=keys,
    ),
]
