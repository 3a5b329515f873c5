"""Names and passwords: who may log in, and how often the slow hash is computed."""

import asyncio
import contextlib
from collections.abc import Mapping

import pytest

from ebla.cql import authentication
from ebla.cql.authentication import (
    FAILURES_FREE,
    PasswordAuthentication,
    PasswordHash,
    hash_password,
    parse_password_hash,
    read_sasl_plain,
)
from ebla.model.errors import BadCredentials, BadProtocol, EblaError, InvalidRequest, Overloaded
from ebla.observe.event_reporter import discard_event
from ebla.runtime.system_rng import SystemRng

CHANCE = SystemRng()
ADDRESS = "192.0.2.7"


@pytest.fixture(scope="module")
def known() -> PasswordHash:
    return hash_password("clay", CHANCE)


@pytest.fixture
def proofs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The passwords whose hash was computed."""
    made: list[str] = []
    real = PasswordHash.is_of

    def counted(self: PasswordHash, password: str) -> bool:
        made.append(password)
        return real(self, password)

    monkeypatch.setattr(PasswordHash, "is_of", counted)
    return made


def test_a_hash_is_read_back_and_fits_its_password_alone(known: PasswordHash) -> None:
    again = parse_password_hash(str(known))
    assert again == known
    assert again.is_of("clay")
    assert not again.is_of("Clay")
    assert hash_password("clay", CHANCE).digest != known.digest


@pytest.mark.parametrize(
    "text",
    [
        "",
        "clay",
        "scrypt$3$8$1$AA==$AA==",
        "md5$1$1$1$AA==$AA==",
        "scrypt$16384$8$1$AA==$",
        "scrypt$999999999$8$1$AAAA$BBBB",
    ],
)
def test_what_is_no_hash_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="hash-password"):
        parse_password_hash(text)


@pytest.mark.parametrize(
    ("token", "error"),
    [
        (b"", BadProtocol),
        (b"\0cassandra", BadProtocol),
        (b"\0a\0b\0c", BadProtocol),
        (b"\0\xff\0b", BadProtocol),
        (b"\0\0b", BadCredentials),
    ],
)
def test_credentials_that_are_none(token: bytes, error: type[EblaError]) -> None:
    with pytest.raises(error):
        read_sasl_plain(token)


async def test_who_knows_the_password_is_let_in_and_proved_once(known: PasswordHash, proofs: list[str]) -> None:
    login = PasswordAuthentication({"scribe": known}, CHANCE, discard_event)
    users = await asyncio.gather(*(login.authenticate(b"\0scribe\0clay", ADDRESS) for _ in range(20)))
    assert users == ["scribe"] * 20
    assert await login.authenticate(b"other\0scribe\0clay", ADDRESS) == "scribe"
    assert 1 <= proofs.count("clay") <= 3


async def test_a_wrong_password_and_an_unknown_name_are_refused_alike(known: PasswordHash, proofs: list[str]) -> None:
    login = PasswordAuthentication({"scribe": known}, CHANCE, discard_event)
    for token in (b"\0scribe\0wax", b"\0nobody\0clay"):
        with pytest.raises(BadCredentials, match="and/or password are incorrect"):
            await login.authenticate(token, ADDRESS)
    assert proofs == ["wax", "clay"]


async def test_a_failed_login_is_reported_and_many_of_one_address_wait(known: PasswordHash) -> None:
    events: list[tuple[str, Mapping[str, object]]] = []
    login = PasswordAuthentication({"scribe": known}, CHANCE, lambda name, details: events.append((name, details)))
    loop = asyncio.get_running_loop()

    async def waited_s(token: bytes, address: str = ADDRESS) -> int:
        begun = loop.time()
        with contextlib.suppress(BadCredentials):
            await login.authenticate(token, address)
        return round(loop.time() - begun)

    long_name = b"\0" + b"n" * 100 + b"\0clay"
    assert [await waited_s(long_name) for _ in range(FAILURES_FREE)] == [0] * FAILURES_FREE
    assert events == [("cql.login_failed", {"address": ADDRESS, "user": "n" * 64})] * FAILURES_FREE
    assert [await waited_s(b"\0scribe\0wax") for _ in range(2)] == [1, 2]
    assert await waited_s(b"\0scribe\0wax", "192.0.2.8") == 0
    # The right password waits as well, once: then it is known.
    assert [await waited_s(b"\0scribe\0clay") for _ in range(2)] == [4, 0]


async def test_too_many_at_once_are_told_so(known: PasswordHash, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authentication, "_CHECKS_WAITING_MAX", 1)
    login = PasswordAuthentication({"scribe": known}, CHANCE, discard_event)
    async with asyncio.TaskGroup() as tasks:
        first = tasks.create_task(login.authenticate(b"\0scribe\0clay", ADDRESS))
        await asyncio.sleep(0)
        with pytest.raises(Overloaded):
            await login.authenticate(b"\0scribe\0wax", ADDRESS)
        assert await first == "scribe"
