"""A message that the state machine wants sent."""

from __future__ import annotations

from typing import NamedTuple

from unisono.coordinator.messages import Body
from unisono.fabric.address import Address

STRATEGY = "strategy"
"""The port of a learner's strategy, for directives."""


class Output(NamedTuple):
    """A message and its receiver."""

    to: Address
    port: str
    body: Body
