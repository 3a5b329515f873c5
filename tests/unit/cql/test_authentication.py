"""Names and passwords: who may log in, and how often the slow hash is computed."""

import asyncio

import pytest

from ebla.cql import authentication
from ebla.cql.authentication import (
    AllowAllAuthentication,
    PasswordAuthentication,
    PasswordHash,
    hash_password,
    parse_password_hash,
    read_sasl_plain,
)
from ebla.model.errors import BadCredentials, BadProtocol, EblaError, InvalidRequest, Overloaded
from ebla.runtime.system_rng import SystemRng

CHANCE = SystemRng()


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
    "text", ["", "clay", "scrypt$3$8$1$AA==$AA==", "md5$1$1$1$AA==$AA==", "scrypt$16384$8$1$AA==$"]
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
    login = PasswordAuthentication({"scribe": known}, CHANCE)
    users = await asyncio.gather(*(login.authenticate(b"\0scribe\0clay") for _ in range(20)))
    assert users == ["scribe"] * 20
    assert await login.authenticate(b"other\0scribe\0clay") == "scribe"
    assert 1 <= proofs.count("clay") <= 3


async def test_a_wrong_password_and_an_unknown_name_are_refused_alike(known: PasswordHash, proofs: list[str]) -> None:
    login = PasswordAuthentication({"scribe": known}, CHANCE)
    for token in (b"\0scribe\0wax", b"\0nobody\0clay"):
        with pytest.raises(BadCredentials, match="and/or password are incorrect"):
            await login.authenticate(token)
    assert proofs == ["wax", "clay"]


async def test_too_many_at_once_are_told_so(known: PasswordHash, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authentication, "_CHECKS_WAITING_MAX", 1)
    login = PasswordAuthentication({"scribe": known}, CHANCE)
    async with asyncio.TaskGroup() as tasks:
        first = tasks.create_task(login.authenticate(b"\0scribe\0clay"))
        await asyncio.sleep(0)
        with pytest.raises(Overloaded):
            await login.authenticate(b"\0scribe\0wax")
        assert await first == "scribe"


def test_without_passwords_everyone_is_the_same() -> None:
    login = AllowAllAuthentication()
    assert login.authenticator is None
    assert asyncio.run(login.authenticate(b"")) == "anonymous"
