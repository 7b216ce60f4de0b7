"""What can be chosen by name, a line each, for the help of commands."""

from __future__ import annotations

import inspect
from collections.abc import Mapping

from rich.table import Table
from rich.text import Text

from unisono import models
from unisono.config import OptimizerChoice
from unisono.strategies.registry import find, names

_OPTIMIZERS = {
    OptimizerChoice.AUTO: "sgd for one learner, ng-sgd for several (default)",
    OptimizerChoice.SGD: "stochastic gradient descent with momentum",
    OptimizerChoice.NG_SGD: "the same with Kaldi's online natural gradient",
    OptimizerChoice.ADAMW: "Adam with decoupled weight decay",
}


def choices() -> Table:
    """Strategies, models and optimizers."""
    table = Table(box=None, pad_edge=False, show_header=False)
    _add(table, "Strategies", {name: _summary(find(name)) for name in names()})
    _add(table, "Models", {name: models.find(name).description for name in models.names()})
    _add(table, "Optimizers", {choice.value: _OPTIMIZERS[choice] for choice in OptimizerChoice})
    return table


def _add(table: Table, title: str, found: Mapping[str, str]) -> None:
    table.add_row(f" [bold]{title}[/]")
    for name, text in found.items():
        table.add_row(f"   {name}", Text(text))


def _summary(kind: type) -> str:
    """The first line of what its class says of itself."""
    return (inspect.getdoc(kind) or "").split("\n")[0].rstrip(".")
