import uuid
from dataclasses import dataclass
from typing import Any

import pytest

from ebla.cql.plan.functions import FUNCTIONS, overloads_of, timeuuid_ms, timeuuid_of
from ebla.model.byte_comparable import encode_comparable
from ebla.model.cql_types import SCALARS, ScalarType
from ebla.model.errors import InvalidRequest
from ebla.model.values import decode, encode, validation_error

NOW_US = 1_700_000_000_123_456


@dataclass
class Now:
    now_us: int = NOW_US

    def random_bytes(self, count: int) -> bytes:
        return bytes(range(count))


def called(name: str, kind: str | None = None, value: Any = None) -> Any:
    """A function with one argument of a type, or none."""
    wanted = () if kind is None else (SCALARS[kind],)
    (function,) = [one for one in overloads_of(name) if one.arguments == wanted]
    arguments = [] if kind is None else [None if value is None else encode(SCALARS[kind], value)]
    found = function.work(arguments, Now())
    return None if found is None else decode(function.result, found)


TIMEUUID = uuid.UUID(bytes=timeuuid_of(NOW_US, bytes(8)))


@pytest.mark.parametrize(
    ("name", "kind", "value", "result"),
    [
        ("totimestamp", "timeuuid", TIMEUUID, 1_700_000_000_123),
        ("totimestamp", "date", 1, 86_400_000),
        ("to_timestamp", "timestamp", 5, 5),
        ("todate", "timestamp", 86_400_000 * 3 + 7, 3),
        ("todate", "timestamp", -1, -1),
        ("to_date", "timeuuid", TIMEUUID, 19675),
        ("tounixtimestamp", "timestamp", 12, 12),
        ("to_unix_timestamp", "date", 2, 172_800_000),
        ("dateof", "timeuuid", TIMEUUID, 1_700_000_000_123),
        ("unixtimestampof", "timeuuid", TIMEUUID, 1_700_000_000_123),
        ("textasblob", "text", "ab", b"ab"),
        ("blobastext", "blob", b"ab", "ab"),
        ("varcharasblob", "varchar", "ab", b"ab"),
        ("intasblob", "int", 258, b"\0\0\1\2"),
        ("blobasint", "blob", b"\0\0\1\2", 258),
        ("blob_as_bigint", "blob", bytes(8), 0),
        ("bigint_as_blob", "bigint", 1, bytes(7) + b"\1"),
        ("blobasboolean", "blob", b"\1", True),
    ],
)
def test_conversions(name: str, kind: str, value: Any, result: Any) -> None:
    assert called(name, kind, value) == result
    assert called(name, kind, None) is None


def test_every_scalar_becomes_a_blob_and_comes_back() -> None:
    for name in SCALARS:
        if name in ("blob", "counter"):
            continue
        assert f"{name}asblob" in FUNCTIONS
        assert f"blobas{name}" in FUNCTIONS


def test_what_a_request_knows_of_its_moment() -> None:
    assert called("now").version == 1
    assert timeuuid_ms(called("now").bytes) == NOW_US // 1000
    assert called("currenttimeuuid").time == called("now").time
    assert called("currenttimestamp") == NOW_US // 1000
    assert called("current_date") == 19675
    assert called("currenttime") == NOW_US % 86_400_000_000 * 1000
    assert called("uuid").version == 4


def test_the_ends_of_a_millisecond() -> None:
    """In the order of timeuuids, every timeuuid of that time lies between them."""
    least, greatest = called("mintimeuuid", "timestamp", 1000), called("maxtimeuuid", "timestamp", 1000)
    assert least.time // 10_000 == greatest.time // 10_000
    assert least.time % 10_000 == 0
    assert greatest.time % 10_000 == 9_999
    inside = [timeuuid_of(1_000_000 + 999, bytes((first,)) * 8) for first in (0, 0x7F, 0x80, 0xFF)]
    places = [encode_comparable(SCALARS["timeuuid"], one) for one in (least.bytes, *inside, greatest.bytes)]
    assert min(places) == places[0]
    assert max(places) == places[-1]
    for one in (least, greatest):
        assert validation_error(SCALARS["timeuuid"], one.bytes) is None


@pytest.mark.parametrize(
    ("name", "kind", "value", "words"),
    [
        ("blobasint", "blob", b"\1", "In call to function blobasint, value 0x01 is no int"),
        ("blobastext", "blob", b"\xff", "is no text"),
        ("blobastimeuuid", "blob", bytes(16), "version 1"),
        ("todate", "timestamp", (1 << 63) - 1, "out of the range of dates"),
        ("todate", "timestamp", -(1 << 63), "out of the range of dates"),
    ],
)
def test_values_that_have_no_result(name: str, kind: str, value: Any, words: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        called(name, kind, value)
    assert words in str(caught.value)


def test_names() -> None:
    assert overloads_of("system.now") == overloads_of("now")
    with pytest.raises(InvalidRequest, match="Unknown function 'nope'"):
        overloads_of("nope")


def test_only_what_does_not_ask_the_moment_is_worked_out_once() -> None:
    pure = {name for name, several in FUNCTIONS.items() if all(one.is_pure for one in several)}
    assert "todate" in pure
    assert "blobasint" in pure
    assert not pure & {"now", "uuid", "currenttimestamp", "current_date", "currenttime", "current_timeuuid"}
    assert all(isinstance(one.result, ScalarType) for several in FUNCTIONS.values() for one in several)
