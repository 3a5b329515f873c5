"""Fields of a newer release survive a read and a write by an older one."""

import msgspec
import pytest

from ebla.model.stored_value import decode_stored, encode_stored, unknown_fields


class Old(msgspec.Struct, frozen=True, array_like=True):
    name: str
    size: int = 0


class New(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    name: str
    size: int = 0
    colour: str = "none"
    shape: tuple[int, ...] = ()


class OldTagged(msgspec.Struct, frozen=True, tag="thing", array_like=True):
    name: str


class NewTagged(msgspec.Struct, frozen=True, tag="thing", array_like=True):
    name: str
    colour: str = "none"


def test_an_older_release_hands_on_what_it_does_not_know() -> None:
    written = msgspec.msgpack.encode(New(name="a", size=1, colour="red", shape=(1, 2)))
    read = decode_stored(Old, written)
    rewritten = encode_stored(read.with_value(Old("a", 2)))
    assert msgspec.msgpack.decode(rewritten, type=New) == New(name="a", size=2, colour="red", shape=(1, 2))


def test_a_tag_is_not_taken_for_a_field() -> None:
    written = msgspec.msgpack.encode(NewTagged("a", "red"))
    rewritten = encode_stored(decode_stored(OldTagged, written).with_value(OldTagged("b")))
    assert msgspec.msgpack.decode(rewritten, type=NewTagged) == NewTagged("b", "red")


def test_a_newer_release_reads_what_an_older_one_wrote() -> None:
    assert decode_stored(New, msgspec.msgpack.encode(Old("a", 1))).value == New(name="a", size=1)


def test_garbage_is_refused() -> None:
    with pytest.raises(msgspec.DecodeError):
        decode_stored(Old, b"\xc1")


@pytest.mark.parametrize("known", [1, 14, 15, 16, 17, 300, 65_535, 65_536])
@pytest.mark.parametrize("more", [0, 1, 3])
def test_the_head_of_an_array_of_any_length_tells_what_is_unknown(known: int, more: int) -> None:
    kind = msgspec.defstruct("Wide", [f"field{number}" for number in range(known)], array_like=True)
    data = msgspec.msgpack.encode(list(range(known + more)))
    assert [msgspec.msgpack.decode(field) for field in unknown_fields(kind, data)] == list(range(known, known + more))
