"""`unisono watch`: the live page of a run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from unisono.cli.options import WATCH_TOKEN
from unisono.watch.feed import find_run
from unisono.watch.server import LOCALHOST, serving


def watch(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="A run's directory, running or finished.")
    ],
    port: Annotated[int, typer.Option(help="Port; 0: any that is free.", min=0, max=65535)] = 8642,
    address: Annotated[
        str,
        typer.Option(
            help="Address to listen on. On any but this machine's own, viewing needs the token, as "
            f"the buttons always do; it is generated, or taken from {WATCH_TOKEN}."
        ),
    ] = LOCALHOST,
) -> None:
    """Show a run in the browser while it runs, or afterwards: one page, and /metrics."""
    token = os.environ.get(WATCH_TOKEN, "")
    with serving(find_run(run), address, port, token) as (server, url):
        typer.echo(f"watch {run} at {url} (Ctrl-C ends this, not the run)")
        server.wait()
