"""Authentication of clients by name and password.

Passwords are stored as scrypt hashes, which are slow on purpose: they are computed in threads, a few at a time. Drivers
open many connections with the same password, so verified passwords are cached as HMACs under a per-process key.
"""

import asyncio
import binascii
import hashlib
import hmac
from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import dataclass

from ebla.cql.failed_logins import FailedLogins
from ebla.model.errors import BadCredentials, BadProtocol, InvalidRequest, Overloaded
from ebla.observe.event_reporter import EventReporter
from ebla.ports.rng import Rng

PASSWORD_AUTHENTICATOR = "org.apache.cassandra.auth.PasswordAuthenticator"  # noqa: S105  # a name drivers look for
ANONYMOUS = "anonymous"
SALT_BYTES = 16
COST, BLOCK, PARALLEL = 1 << 14, 8, 1
_SCHEME = "scrypt"
_MEMORY_BYTES_MAX = 64 << 20
_CHECKS_AT_ONCE_MAX = 2
_CHECKS_WAITING_MAX = 1_024
_KNOWN_MAX = 1_024
USER_CHARACTERS_SHOWN = 64
"""Of the name in an event."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PasswordHash:
    """Written as `scrypt$cost$block$parallel$salt$digest`, the last two in base 64."""

    cost: int
    block: int
    parallel: int
    salt: bytes
    digest: bytes

    def __str__(self) -> str:
        salt, digest = (b64encode(part).decode("ascii") for part in (self.salt, self.digest))
        return f"{_SCHEME}${self.cost}${self.block}${self.parallel}${salt}${digest}"

    def is_of(self, password: str) -> bool:
        return hmac.compare_digest(self.digest, _digest(password, self.salt, (self.cost, self.block, self.parallel)))


def hash_password(password: str, rng: Rng) -> PasswordHash:
    """Takes tens of milliseconds."""
    salt = rng.bytes(SALT_BYTES)
    return PasswordHash(
        cost=COST, block=BLOCK, parallel=PARALLEL, salt=salt, digest=_digest(password, salt, (COST, BLOCK, PARALLEL))
    )


def parse_password_hash(text: str) -> PasswordHash:
    try:
        scheme, cost, block, parallel, salt, digest = text.split("$")
        found = PasswordHash(
            cost=int(cost), block=int(block), parallel=int(parallel), salt=b64decode(salt), digest=b64decode(digest)
        )
        if scheme != _SCHEME or not found.digest:
            raise ValueError(scheme)
        found.is_of("")  # detects invalid scrypt costs here, not at the first login
    except (ValueError, MemoryError, binascii.Error):
        raise InvalidRequest(
            "this is no password hash", advice="create one with `ebla hash-password`; it begins with scrypt$"
        ) from None
    return found


def _digest(password: str, salt: bytes, costs: tuple[int, int, int]) -> bytes:
    cost, block, parallel = costs
    return hashlib.scrypt(password.encode(), salt=salt, n=cost, r=block, p=parallel, maxmem=_MEMORY_BYTES_MAX)


class PasswordAuthentication:
    def __init__(self, users: Mapping[str, PasswordHash], rng: Rng, report: EventReporter) -> None:
        self._report = report
        self._failed = FailedLogins()
        self._users = dict(users)
        self._key = rng.bytes(32)
        # Rejecting an unknown name must take as long as rejecting a wrong password.
        self._unknown_user = PasswordHash(
            cost=COST, block=BLOCK, parallel=PARALLEL, salt=rng.bytes(SALT_BYTES), digest=b"\0"
        )
        self._verified: dict[bytes, None] = {}
        self._checks = asyncio.Semaphore(_CHECKS_AT_ONCE_MAX)
        self._waiting = 0

    async def authenticate(self, token: bytes, address: str) -> str:
        """The user's name. Raises `BadCredentials`, and `Overloaded` if too many clients log in at once. An address
        with many failed logins waits first, unless the password is known to be right."""
        name, password = read_sasl_plain(token)
        cache_key = hmac.digest(self._key, token, "sha256")
        if cache_key in self._verified:
            return name
        loop = asyncio.get_running_loop()
        delay_ms = self._failed.take_delay_ms(address, int(loop.time() * 1000))
        if delay_ms:
            await asyncio.sleep(delay_ms / 1000)
        if self._waiting >= _CHECKS_WAITING_MAX:
            raise Overloaded(f"{self._waiting} clients already wait for the check of their passwords")
        self._waiting += 1
        try:
            async with self._checks:
                is_valid = cache_key in self._verified or await self._verify(name, password)
        finally:
            self._waiting -= 1
        if not is_valid:
            self._failed.failed(address, int(loop.time() * 1000))
            self._report("cql.login_failed", {"address": address, "user": name[:USER_CHARACTERS_SHOWN]})
            raise BadCredentials(f"Provided username {name} and/or password are incorrect")
        if len(self._verified) >= _KNOWN_MAX:
            self._verified.clear()
        self._verified[cache_key] = None
        return name

    async def _verify(self, name: str, password: str) -> bool:
        known = self._users.get(name, self._unknown_user)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(None, known.is_of, password) and name in self._users


def read_sasl_plain(token: bytes) -> tuple[str, str]:
    """SASL PLAIN: authorization id (empty), name and password, separated by zero bytes."""
    parts = token.split(b"\0")
    if len(parts) != 3:
        raise BadProtocol("the credentials are not in SASL PLAIN format: an empty part, a name, a password")
    try:
        name, password = parts[1].decode(), parts[2].decode()
    except UnicodeDecodeError:
        raise BadProtocol("name and password must be UTF-8") from None
    if not name:
        raise BadCredentials("Provided username is empty")
    return name, password
