"""The commands as one application, one file a command."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

import unisono
from unisono.cli.bench import bench
from unisono.cli.choices import choices
from unisono.cli.compare import compare
from unisono.cli.decode import decode
from unisono.cli.demo import demo
from unisono.cli.doctor import doctor
from unisono.cli.export import export
from unisono.cli.launch import launch
from unisono.cli.main import INTERRUPTED, heed_termination
from unisono.cli.options import Verbose
from unisono.cli.prepare import prepare
from unisono.cli.report import report
from unisono.cli.simulate import simulate
from unisono.cli.synthesize import synthesize
from unisono.cli.train import train
from unisono.cli.watch import watch
from unisono.errors import UserError
from unisono.learner.ranks import Rank
from unisono.training.display import show
from unisono.verbosity import log_to_terminal


class Command(TyperCommand):
    """A command whose help shows flags without a value."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _bare_flags(super().get_params(ctx))


class TrainCommand(Command):
    """A command whose help also lists strategies, models and optimizers."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        super().format_help(ctx, formatter)
        show(choices())


class Commands(TyperGroup):
    """Says in one line that a command was interrupted; typer would say `Aborted`."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _bare_flags(super().get_params(ctx))

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as interrupt:
            hint = "; ".join(["interrupted", *map(str, interrupt.args)])
            print(f"unisono: {hint}", file=sys.stderr)
            sys.exit(INTERRUPTED)


def _bare_flags(options: list[Any]) -> list[Any]:
    for option in options:
        if getattr(option, "is_flag", False):
            option.metavar = ""
    return options


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"unisono {unisono.__version__}")
        raise typer.Exit()


@app.callback()
def common(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Show the version and exit.", callback=_version, is_eager=True
        ),
    ] = False,
    verbose: Verbose = False,
) -> None:
    """Train acoustic models on many machines; choose how the learners share what they learn."""
    log_to_terminal(verbose=verbose)
    rank = Rank.from_environment()
    command = context.invoked_subcommand
    if rank is None:
        heed_termination()
    if rank is None or command == "train":
        return
    if rank.number > 0:
        sys.exit(2)
    own = "run the script itself under it, or use `unisono launch` alone"
    what = own if command == "launch" else f"run `unisono {command}` alone"
    raise UserError(f"{rank.launcher} has started {rank.count} processes of this command: {what}")


COMMANDS = (
    demo, synthesize, prepare, decode, compare, simulate, export, bench, doctor, report,
    watch,
)  # fmt: skip
for command in COMMANDS:
    app.command(cls=Command)(command)
app.command(cls=TrainCommand)(train)
app.command(
    cls=Command,
    # Arguments after the script are the script's.
    context_settings={"allow_extra_args": True, "allow_interspersed_args": False},
)(launch)
