"""Bodies round-trip, and truncated bodies are rejected."""

import struct

import pytest

from ebla.model.errors import BadProtocol
from ebla.wire.cql import notation
from ebla.wire.cql.messages import UNSET
from ebla.wire.cql.notation import BodyReader


def test_what_is_written_is_read_back() -> None:
    body = (
        notation.byte(7)
        + notation.short(65_535)
        + notation.integer(-5)
        + notation.string("Ebla")
        + notation.short_bytes(b"\x00\x01")
        + notation.string_list(["a", "ü"])
        + notation.bytes_map({"k": b"v"})
        + notation.value(b"")
        + notation.value(None)
        + struct.pack(">i", -2)
    )
    reader = BodyReader(body)
    assert reader.byte() == 7
    assert reader.short() == 65_535
    assert reader.integer() == -5
    assert reader.string() == "Ebla"
    assert reader.short_bytes() == b"\x00\x01"
    assert reader.string_list() == ["a", "ü"]
    assert reader.bytes_map() == {"k": b"v"}
    assert [reader.value(), reader.value(), reader.value()] == [b"", None, UNSET]
    assert reader.offset == len(body)


@pytest.mark.parametrize("read", ["short", "integer", "long", "string", "long_string", "short_bytes", "data", "value"])
def test_a_body_that_ends_early_is_refused(read: str) -> None:
    whole = {"long_string": notation.integer(3), "data": notation.integer(3), "value": notation.integer(3)}
    body = whole.get(read, b"\0\3") + b"ab"
    with pytest.raises(BadProtocol, match="too early"):
        getattr(BodyReader(body[: 1 if read in ("short", "integer", "long") else None]), read)()


@pytest.mark.parametrize(
    ("read", "body", "words"),
    [
        ("value", struct.pack(">i", -3), "length -3"),
        ("long_string", struct.pack(">i", -1), "length -1"),
        ("string", b"\0\1\xff", "UTF8"),
    ],
)
def test_what_is_no_value_is_refused(read: str, body: bytes, words: str) -> None:
    with pytest.raises(BadProtocol, match=words):
        getattr(BodyReader(body), read)()


def test_a_message_for_people_is_cut_to_what_a_string_holds() -> None:
    found = BodyReader(notation.short_string("ü" * 60_000)).string()
    assert found == "ü" * 30_000


def test_addresses_of_both_families() -> None:
    assert notation.inet(b"\x7f\0\0\1", 9042) == b"\x04\x7f\0\0\1\0\0\x23\x52"
    assert notation.inet(b"\0" * 16, 1)[:1] == b"\x10"
