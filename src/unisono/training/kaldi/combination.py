"""The final model of a run: a mean of its last models, as many as are best together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from unisono.training.kaldi.kaldi_schedule import MOST_EVALUATIONS

State = Mapping[str, Tensor]
Judge = Callable[[], float]
"""The objective of the model as it is; larger is better."""


def copy_state(model: nn.Module) -> dict[str, Tensor]:
    """A model's parameters and buffers, on the host."""
    return {name: value.detach().cpu().clone() for name, value in model.state_dict().items()}


def combine(
    model: nn.Module, states: Sequence[State], judge: Judge, prepare: Callable[[], None]
) -> tuple[int, list[float]]:
    """Leaves the best mean of the last n models in the model.

    With x_1 .. x_N the models in the order of the run, the candidates are

        m_n = (x_(N-n+1) + ... + x_N) / n,     n = 1 .. N,

    of which at most ``MOST_EVALUATIONS``, evenly spread, are tried; m_1, the last model, is always
    among them, so the result is never worse than it in the eyes of the judge. Of equals the one
    of fewer models is taken.

    Args:
        model: What the candidates are put into, one after the other.
        states: x_1 .. x_N, at least one.
        judge: The objective.
        prepare: Called before each judgement: brings statistics up to date.

    Returns:
        n, and the objective of each candidate that was tried.
    """
    count = len(states)
    apart = -(-count // MOST_EVALUATIONS)
    total = {name: value.double() for name, value in states[-1].items() if _averages(value)}
    best, chosen, objectives = -float("inf"), 1, []
    for n in range(1, count + 1):
        if n > 1:
            for name, value in total.items():
                value += states[-n][name].double()
        if (n - 1) % apart == 0:
            _put(model, states[-1], total, n)
            prepare()
            objectives.append(judge())
            if objectives[-1] > best:
                best, chosen = objectives[-1], n
    total = {
        name: torch.stack([state[name].double() for state in states[count - chosen :]]).sum(0)
        for name in total
    }
    _put(model, states[-1], total, chosen)
    prepare()
    return chosen, objectives


def _averages(value: Tensor) -> bool:
    """Counters are not averaged: the last one's stay."""
    return value.is_floating_point()


def _put(model: nn.Module, last: State, total: State, n: int) -> None:
    mean = {name: (value / n).to(last[name].dtype) for name, value in total.items()}
    model.load_state_dict({**last, **mean})


def has_statistics(model: nn.Module) -> bool:
    """Whether a model normalises by statistics of its inputs."""
    return any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in model.modules())


@torch.no_grad()
def estimate_statistics(model: nn.Module, minibatches: Sequence[Tensor]) -> None:
    """Makes batch norm's statistics anew: plain means over minibatches, without dropout.

    Those of an average of models are not the average of theirs.
    """
    norms = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    was = {module: module.training for module in model.modules()}
    momenta = [norm.momentum for norm in norms]
    model.eval()
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # a cumulative mean
        norm.train()
    for x in minibatches:
        model(x)
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
    for module, training in was.items():
        module.training = training
