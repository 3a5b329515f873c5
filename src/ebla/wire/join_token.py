"""The join token: a short string with which an operator lets a new node join the cluster.

It contains the fingerprint of the cluster's authority, by which the new node checks its peers, a time of expiry, and a
code that only nodes of the cluster can make or check, because its key is derived from the authority's key. No node
stores it: every node can check every token. It may be used several times until it expires.
"""

import base64
import binascii
import hmac
import struct
from dataclasses import dataclass, replace

from ebla.model.errors import InvalidRequest, Refused
from ebla.ports.rng import Rng

PREFIX = "ebla-join-"
FINGERPRINT_BYTES = 16
_SIGNED = struct.Struct(">BI8s16s")
_FORMAT = 1
_CODE_BYTES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinToken:
    expires_at_s: int
    """Seconds since 1970."""
    nonce: bytes
    fingerprint: bytes
    code: bytes

    def __repr__(self) -> str:
        return f"JoinToken(expires_at_s={self.expires_at_s})"

    def __str__(self) -> str:
        return PREFIX + base64.urlsafe_b64encode(self.signed() + self.code).decode("ascii")

    def signed(self) -> bytes:
        return _SIGNED.pack(_FORMAT, self.expires_at_s, self.nonce, self.fingerprint)

    def names_authority(self, fingerprint: bytes) -> bool:
        return hmac.compare_digest(self.fingerprint, fingerprint[:FINGERPRINT_BYTES])

    def check(self, key: bytes, now_s: int) -> None:
        """At a node of the cluster. Checks the code first, so that a forger learns nothing about the expiry."""
        if not hmac.compare_digest(self.code, _code(key, self.signed())):
            raise Refused("the join token is not of this cluster", advice="make one at a node of this cluster")
        if now_s >= self.expires_at_s:
            raise Refused("the join token has expired", advice="make a new one")


def make_join_token(key: bytes, fingerprint: bytes, expires_at_s: int, rng: Rng) -> JoinToken:
    assert len(fingerprint) >= FINGERPRINT_BYTES
    unsigned = JoinToken(
        expires_at_s=expires_at_s, nonce=rng.bytes(8), fingerprint=fingerprint[:FINGERPRINT_BYTES], code=b""
    )
    return replace(unsigned, code=_code(key, unsigned.signed()))


def parse_join_token(text: str) -> JoinToken:
    """Raises `InvalidRequest` for a text that is not a token. Does not check whether the token is valid."""
    text = text.strip()
    try:
        if not text.startswith(PREFIX):
            raise ValueError(f"it must begin with {PREFIX}")
        data = base64.b64decode(text.removeprefix(PREFIX).encode("ascii"), altchars=b"-_", validate=True)
        if len(data) != _SIGNED.size + _CODE_BYTES:
            raise ValueError("it is not complete")
        form, expires_at_s, nonce, fingerprint = _SIGNED.unpack_from(data)
        if form != _FORMAT:
            raise ValueError(f"its format {form} is not known here")
    except (ValueError, binascii.Error) as error:
        raise InvalidRequest(f"not a join token: {error}") from None
    return JoinToken(expires_at_s=expires_at_s, nonce=nonce, fingerprint=fingerprint, code=data[_SIGNED.size :])


def _code(key: bytes, signed: bytes) -> bytes:
    return hmac.digest(key, signed, "sha256")[:_CODE_BYTES]
