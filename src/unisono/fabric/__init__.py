"""What carries messages and runs activities: threads and sockets, or a virtual clock."""

from __future__ import annotations

from unisono.fabric.address import COORDINATOR, Address, learner
from unisono.fabric.api import (
    CREDIT,
    Body,
    Cancelled,
    Fabric,
    Full,
    Gone,
    Member,
    Message,
    TimedOut,
    Traffic,
    View,
)
from unisono.fabric.vector import Precision, SizeVector, TensorVector, Vector

__all__ = [
    "COORDINATOR",
    "CREDIT",
    "Address",
    "Body",
    "Cancelled",
    "Fabric",
    "Full",
    "Gone",
    "Member",
    "Message",
    "Precision",
    "SizeVector",
    "TensorVector",
    "TimedOut",
    "Traffic",
    "Vector",
    "View",
    "learner",
]
