"""``unisono``: one command line, one file a command."""

from __future__ import annotations

import io
import sys

import typer

from unisono.cli.bench import bench
from unisono.cli.compare import compare
from unisono.cli.decode import decode
from unisono.cli.demo import demo
from unisono.cli.doctor import doctor
from unisono.cli.export import export
from unisono.cli.launch import launch
from unisono.cli.prepare import prepare
from unisono.cli.report import report
from unisono.cli.synthesize import synthesize
from unisono.cli.train import train
from unisono.coordinator.client import Abandoned
from unisono.errors import UserError

app = typer.Typer(
    help="Train acoustic models on many machines; choose with one word how the learners agree.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(demo)
app.command()(synthesize)
app.command()(prepare)
app.command()(train)
app.command()(decode)
app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(launch)
app.command()(compare)
app.command()(export)
app.command()(bench)
app.command()(doctor)
app.command()(report)


def main() -> None:
    """Runs a command; what the user can mend is one line and exit status 2."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A word that the terminal cannot show is no reason to end.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        app()
    except (UserError, Abandoned) as error:
        print(f"unisono: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("unisono: interrupted", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
