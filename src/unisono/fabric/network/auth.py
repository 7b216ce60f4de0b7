"""What shows that bytes come from a member of the run: proofs first, then a tag on every piece.

Both sides know the run's token K. With fresh nonces s (of the side that listens) and c (of the side
that calls), and b, what binds both to the channel below (empty on a bare connection),

    listening -> calling:  s
    calling -> listening:  c, H_K("call" s c b)
    listening -> calling:  H_K("answer" s c b)

so that each has shown to know K for this connection alone: what was recorded on another one is of
no use, and nobody can be made to answer its own question. Each direction then has its own key,
H_K(direction s c b), and the n-th piece in it travels with H_key(n, piece): a piece that is
changed, repeated, left out or moved is found. H is HMAC with SHA-256, which today's processors
have instructions for.
"""

from __future__ import annotations

import hmac
import secrets

NONCE = 32
PROOF = 32
TAG = 16
TOKEN = 32
"""Bytes of the token."""


class Forged(Exception):  # noqa: N818
    """Bytes that no member of the run has sent, or not here and now."""


def make_token() -> str:
    """A token for a new run, as text."""
    return secrets.token_hex(TOKEN)


class Proofs:
    """The proofs and keys of one connection."""

    def __init__(self, token: bytes, listening: bytes, calling: bytes, binding: bytes) -> None:
        self._token = token
        self._common = listening + calling + binding

    def proof(self, role: str) -> bytes:
        """What the side in this role (``call`` or ``answer``) shows."""
        return hmac.digest(self._token, role.encode() + self._common, "sha256")

    def check(self, role: str, shown: bytes) -> None:
        """Raises if the other side has shown something else."""
        if not hmac.compare_digest(self.proof(role), shown):
            raise Forged("it does not know the token of the run")

    def seal(self, direction: str, *, private: bool) -> Seal:
        """The tags of one direction: ``calling`` or ``listening`` is who speaks.

        A private channel has its own; there they are empty.
        """
        return NoSeal() if private else Seal(self.proof(f"key of {direction}"))


class Seal:
    """The tags of one direction of one connection, each for the next piece only."""

    size = TAG

    def __init__(self, key: bytes) -> None:
        self._keyed = hmac.new(key, digestmod="sha256")
        self._number = 0

    def tag(self, piece: bytes | memoryview) -> bytes:
        """The tag of the next piece."""
        mac = self._keyed.copy()
        mac.update(self._number.to_bytes(8, "little"))
        mac.update(piece)
        self._number += 1
        return mac.digest()[:TAG]

    def check(self, piece: bytes | memoryview, tag: bytes) -> None:
        """Raises if this is not the next piece."""
        if not hmac.compare_digest(self.tag(piece), tag):
            raise Forged("a piece with a wrong tag")


class NoSeal(Seal):
    """Empty tags, where the channel below does what they are for."""

    size = 0

    def __init__(self) -> None:
        super().__init__(b"")

    def tag(self, piece: bytes | memoryview) -> bytes:
        """Nothing."""
        return b""
