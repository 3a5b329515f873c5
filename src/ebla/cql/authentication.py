"""Authentication of clients by name and password.

Passwords are stored as scrypt hashes, which are slow on purpose: they are computed in threads, a few at a time. Drivers
open many connections with the same password, so verified passwords are cached as HMACs under a per-process key.
"""

import asyncio
import binascii
import hashlib
import hmac
from base64 import b64decode, b64encode
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass

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
FAILURES_FREE = 5
WINDOW_MS = 60_000
DELAY_FIRST_MS = 1_000
DELAY_MAX_MS = 30_000
ADDRESSES_MAX = 10_000
"""With failed logins. Beyond that the address that failed longest ago is forgotten."""


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


@dataclass(slots=True)
class _Failures:
    count: int
    last_ms: int
    next_delay_ms: int = DELAY_FIRST_MS


class FailedLogins:
    """How long a login waits after failed ones from the same address. Pure.

    Guessing a password takes many attempts. After `FAILURES_FREE` failures each further attempt of the address waits,
    twice as long as the one before, until the address has had no failure for `WINDOW_MS`. Connections are spread over
    the shards of a node, and each shard counts for itself.
    """

    def __init__(self) -> None:
        self._by_address: OrderedDict[str, _Failures] = OrderedDict()
        """The address that failed last is the last one."""

    def take_delay_ms(self, address: str, now_ms: int) -> int:
        """How long an attempt that begins now has to wait. The next one waits longer, whether this one fails or not:
        many attempts may begin before the first has failed."""
        known = self._current(address, now_ms)
        if known is None or known.count < FAILURES_FREE:
            return 0
        delay_ms = known.next_delay_ms
        known.next_delay_ms = min(2 * delay_ms, DELAY_MAX_MS)
        return delay_ms

    def failed(self, address: str, now_ms: int) -> None:
        known = self._current(address, now_ms)
        if known is None:
            self._by_address[address] = known = _Failures(0, now_ms)
            if len(self._by_address) > ADDRESSES_MAX:
                self._by_address.popitem(last=False)
        known.count += 1
        known.last_ms = now_ms
        self._by_address.move_to_end(address)

    def _current(self, address: str, now_ms: int) -> _Failures | None:
        known = self._by_address.get(address)
        if known is not None and now_ms - known.last_ms > WINDOW_MS:
            del self._by_address[address]
            return None
        return known
