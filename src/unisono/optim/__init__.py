"""What turns gradients into steps: natural gradient and its company."""

from __future__ import annotations

from unisono.optim.natural_gradient import OnlineNaturalGradient
from unisono.optim.ng_sgd import NaturalGradientSGD, Reduction

__all__ = ["NaturalGradientSGD", "OnlineNaturalGradient", "Reduction"]
