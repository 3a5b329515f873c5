"""Decodes what a driver's own encoder writes."""

import io
import struct
from typing import Any

import pytest
from cassandra import ConsistencyLevel as DriverLevel
from cassandra.protocol import BatchMessage, ExecuteMessage, PrepareMessage, QueryMessage, StartupMessage
from cassandra.query import BatchType

from ebla.model.consistency import ConsistencyLevel
from ebla.model.errors import BadProtocol, InvalidRequest
from ebla.wire.cql import notation, requests
from ebla.wire.cql.frames import BatchKind
from ebla.wire.cql.messages import UNSET
from ebla.wire.cql.notation import BodyReader

Level = ConsistencyLevel


def sent(message: Any, version: int = 4) -> bytes:
    out = io.BytesIO()
    message.send_body(out, version)
    return out.getvalue()


def test_a_query_with_everything() -> None:
    message = QueryMessage(
        "SELECT ü", DriverLevel.LOCAL_QUORUM, DriverLevel.SERIAL, fetch_size=500, paging_state=b"there", timestamp=7
    )
    message.query_params = [b"a", None, b""]
    found = requests.read_query(BodyReader(sent(message)))
    assert found.text == "SELECT ü"
    assert found.parameters.level is Level.LOCAL_QUORUM
    assert found.parameters.values == [b"a", None, b""]
    assert found.parameters.page_size == 500
    assert found.parameters.paging_state == b"there"
    assert found.parameters.timestamp_us == 7
    assert not found.parameters.skip_metadata


@pytest.mark.parametrize("version", [3, 4])
def test_an_execute_as_drivers_send_most_of_them(version: int) -> None:
    message = ExecuteMessage(b"0123456789abcdef", [b"key", None], DriverLevel.ONE)
    statement_id, found = requests.read_execute(sent(message, version))
    assert statement_id == b"0123456789abcdef"
    assert found.values == [b"key", None]
    assert (found.level, found.names, found.page_size) == (Level.ONE, None, None)
    assert not found.skip_metadata


@pytest.mark.parametrize("flags", [2, 3, 6, 7])
def test_metadata_is_left_out_where_it_is_known(flags: int) -> None:
    values = struct.pack(">H", 0) if flags & 1 else b""
    size = struct.pack(">i", 100) if flags & 4 else b""
    found = requests.read_parameters(struct.pack(">HB", 1, flags) + values + size, 0)
    assert found.skip_metadata
    assert found.page_size == (100 if flags & 4 else None)


def test_an_execute_behind_a_custom_payload() -> None:
    message = ExecuteMessage(b"id", [b"v"], DriverLevel.TWO, fetch_size=10, timestamp=9)
    statement_id, found = requests.read_execute(b"before" + sent(message), 6)
    assert (statement_id, found.values, found.level) == (b"id", [b"v"], Level.TWO)
    assert (found.page_size, found.timestamp_us) == (10, 9)


def test_named_and_unset_values() -> None:
    body = struct.pack(">HBH", 1, 0x41, 2) + notation.string("a") + notation.value(b"1")
    body += notation.string("b") + struct.pack(">i", -2)
    found = requests.read_parameters(body, 0)
    assert found.names == ["a", "b"]
    assert found.values == [b"1", UNSET]
    assert requests.read_parameters(struct.pack(">HBHi", 1, 1, 1, -2), 0).values == [UNSET]


@pytest.mark.parametrize("size", [0, -1])
def test_a_page_size_that_is_none_asks_for_no_pages(size: int) -> None:
    assert requests.read_parameters(struct.pack(">HBi", 1, 4, size), 0).page_size is None


def test_a_batch() -> None:
    entries = [(False, "INSERT 1", [b"x"]), (True, b"prepared", [None, b"y"])]
    message = BatchMessage(BatchType.UNLOGGED, entries, DriverLevel.QUORUM, DriverLevel.SERIAL, timestamp=12)
    found = requests.read_batch(BodyReader(sent(message)))
    assert found.kind is BatchKind.UNLOGGED
    assert [(item.query, item.values) for item in found.items] == [
        ("INSERT 1", [b"x"]),
        (b"prepared", [None, b"y"]),
    ]
    assert (found.parameters.level, found.parameters.timestamp_us) == (Level.QUORUM, 12)


def test_the_empty_batch() -> None:
    message = BatchMessage(BatchType.LOGGED, [], DriverLevel.ONE)
    assert requests.read_batch(BodyReader(sent(message))).items == ()


def test_startup_prepare_register_and_auth() -> None:
    startup = StartupMessage("3.0.0", {"DRIVER_NAME": "d"})
    assert BodyReader(sent(startup)).string_map() == {"CQL_VERSION": "3.0.0", "DRIVER_NAME": "d"}
    assert BodyReader(sent(PrepareMessage("SELECT 1"))).long_string() == "SELECT 1"
    names = notation.string_list(["SCHEMA_CHANGE", "X"])
    assert BodyReader(names).string_list() == ["SCHEMA_CHANGE", "X"]
    assert BodyReader(notation.value(b"\0a\0b")).data() == b"\0a\0b"


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (struct.pack(">HB", 8, 0), "SERIAL consistency is for lightweight transactions"),
        (struct.pack(">HBH", 1, 0x10, 1), "Must be one of SERIAL or LOCAL_SERIAL"),
    ],
)
def test_levels_that_have_no_place(body: bytes, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        requests.read_parameters(body, 0)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (struct.pack(">HB", 77, 0), "Unknown code 77"),
        (struct.pack(">HBHi", 1, 1, 1, -3), "length -3"),
        (struct.pack(">HBHi", 1, 1, 1, 4) + b"abc", "too early"),
        (struct.pack(">HBH", 1, 1, 2) + notation.value(b"a"), "too early"),
        (struct.pack(">HBH", 1, 0x41, 1), "too early"),
        (b"\0", "too early"),
    ],
)
def test_parameters_that_are_none(body: bytes, words: str) -> None:
    with pytest.raises(BadProtocol, match=words):
        requests.read_parameters(body, 0)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"\3", "batch type 3"),
        (b"\0\0\1\2", "query kind"),
        (b"\0\0\0\0\1\x40", "by position"),
        (b"\0\0\0\0\1", "too early"),
    ],
)
def test_batches_that_are_none(body: bytes, words: str) -> None:
    with pytest.raises(BadProtocol, match=words):
        requests.read_batch(BodyReader(body))


def test_an_execute_whose_id_does_not_fit() -> None:
    for body in (b"", b"\0", b"\0\x10abc"):
        with pytest.raises(BadProtocol, match="too early"):
            requests.read_execute(body)


def test_any_needs_a_replica() -> None:
    assert requests.read_parameters(struct.pack(">HB", 0, 0), 0).level is Level.ONE
