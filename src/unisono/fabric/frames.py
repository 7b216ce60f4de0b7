"""What the frames of a link say, checked before anything is done with it.

Between hosts a session begins with a ``Greeting``; then come messages (``Data``) and, at its end, a
``Goodbye``. On the way back there is a ``Receipt`` now and then, or a ``Refusal``. Between
processes of one host the same is simpler, because a connection is the session.
"""

from __future__ import annotations

import ipaddress
import json
from typing import Annotated, Any, TypeVar

import torch
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeInt,
    TypeAdapter,
    ValidationError,
)

from unisono.errors import UserError
from unisono.fabric.address import Address
from unisono.fabric.network.endpoints import SocketAddress

_DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        *(torch.float32, torch.bfloat16, torch.float64, torch.float16),
        *(torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool),
        *(torch.complex64, torch.complex128),
    )
}


class ProtocolError(Exception):
    """A member has sent what none of this version sends; its session ends."""


T = TypeVar("T")


class _Frame(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


def _check_address(text: str) -> str:
    Address.parse(text)
    return text


def _check_place(text: str) -> str:
    try:
        place = SocketAddress.parse(text)
    except UserError as error:
        raise ValueError(str(error)) from None
    ipaddress.ip_address(place.address)
    if not 0 < place.port < 65536:
        raise ValueError(f"there is no port {place.port}")
    return text


class LocalGreeting(_Frame):
    """Who speaks to whom."""

    from_: Annotated[str, AfterValidator(_check_address)] = Field(alias="from")
    to: Annotated[str, AfterValidator(_check_address)]

    @property
    def sender(self) -> Address:
        return Address.parse(self.from_)

    @property
    def receiver(self) -> Address:
        return Address.parse(self.to)


class Greeting(LocalGreeting):
    """And in which session, and where the sender is reached."""

    at: Annotated[str, AfterValidator(_check_place)]
    session: str
    new: bool


class Data(_Frame):
    """A message: its number in the session, port, body; count and type of its vector's numbers."""

    n: NonNegativeInt
    p: str
    b: dict[str, Any]
    v: tuple[NonNegativeInt, str] | None = None


class LocalData(_Frame):
    """A message: port, body; slot, count and type of its vector's numbers, and discarded slots."""

    p: str
    b: dict[str, Any]
    v: tuple[int, NonNegativeInt, str] | None = None
    stale: tuple[int, ...] = ()


class Goodbye(_Frame):
    """The end of a session in good order."""

    bye: int


class Receipt(_Frame):
    """How many messages have come, and how many of each port were ever consumed."""

    r: NonNegativeInt
    c: dict[str, NonNegativeInt]


class LocalReceipt(_Frame):
    """So many more messages of a port were consumed, and a slot is free again; empty: welcome."""

    p: str | None = None
    n: NonNegativeInt = 0
    slot: int | None = None


class Refusal(_Frame):
    """The one that is greeted is not here, or holds the sender for gone."""

    no: int


GREETING = TypeAdapter(Greeting)
LOCAL_GREETING = TypeAdapter(LocalGreeting)
MESSAGE: TypeAdapter[Data | Goodbye] = TypeAdapter(
    Annotated[Data | Goodbye, Field(union_mode="left_to_right")]
)
LOCAL_MESSAGE = TypeAdapter(LocalData)
ANSWER: TypeAdapter[Receipt | Refusal] = TypeAdapter(
    Annotated[Receipt | Refusal, Field(union_mode="left_to_right")]
)
LOCAL_RECEIPT = TypeAdapter(LocalReceipt)


def read(head: bytes, kind: TypeAdapter[T]) -> T:
    """The frame, which must be of that kind."""
    try:
        return kind.validate_python(json.loads(head))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"])) or "frame"
        raise ProtocolError(f"{where}: {first['msg']}") from None
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"not JSON: {error}") from None


def dtype_of(name: str) -> torch.dtype:
    """The type of a vector's numbers."""
    try:
        return _DTYPES[name]
    except KeyError:
        raise ProtocolError(f"there are no vectors of {name[:40]!r}") from None
