"""What carries messages and runs activities: threads and sockets, or a virtual clock."""

from __future__ import annotations

from unisono.fabric.address import COORDINATOR, Address, Addresses, learner, server
from unisono.fabric.api import (
    CREDIT,
    Body,
    Cancelled,
    ConnectionLost,
    CoordinatorFound,
    Fabric,
    Full,
    Gone,
    Member,
    MembersChanged,
    Message,
    Rejected,
    TimedOut,
    Traffic,
    View,
)
from unisono.fabric.codec import Codec, Malformed, TypedPort, from_plain, to_plain
from unisono.fabric.vector import Precision, SizeVector, TensorVector, Vector, encoded_nbytes

__all__ = [
    "COORDINATOR",
    "CREDIT",
    "Address",
    "Addresses",
    "Body",
    "Cancelled",
    "Codec",
    "ConnectionLost",
    "CoordinatorFound",
    "Fabric",
    "Full",
    "Gone",
    "Malformed",
    "Member",
    "MembersChanged",
    "Message",
    "Precision",
    "Rejected",
    "SizeVector",
    "TensorVector",
    "TimedOut",
    "Traffic",
    "TypedPort",
    "Vector",
    "View",
    "encoded_nbytes",
    "from_plain",
    "learner",
    "server",
    "to_plain",
]
