"""A message that the state machine wants sent."""

from __future__ import annotations

from typing import NamedTuple

from unisono.coordinator.messages import Body
from unisono.fabric.address import Address

STRATEGY = "strategy"
"""The port of a learner's strategy: whatever the coordinator wants of it comes there."""


class Output(NamedTuple):
    """Whom to tell what."""

    to: Address
    port: str
    body: Body
