"""Optimizers and learning-rate schedules: online natural gradient, `ng-sgd`."""

from __future__ import annotations

from unisono.optim.bounded_sgd import bound_steps
from unisono.optim.natural_gradient import OnlineNaturalGradient
from unisono.optim.ng_sgd import NaturalGradientSGD, Reduction
from unisono.optim.schedules import Constant, Exponential, Power, Scaled, Schedule, Switched, WarmUp

__all__ = [
    "Constant",
    "Exponential",
    "NaturalGradientSGD",
    "OnlineNaturalGradient",
    "Power",
    "Reduction",
    "Scaled",
    "Schedule",
    "Switched",
    "WarmUp",
    "bound_steps",
]
