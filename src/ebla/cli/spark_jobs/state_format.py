"""What a command notes of how far it has come, as JSON that people can read too. Pure."""

from typing import ClassVar, TypeVar

import msgspec

from ebla.model.errors import Refused


class StateRecord(msgspec.Struct, frozen=True, kw_only=True):
    FORMAT: ClassVar[int]
    """The newest that is known; a note says which one it has."""
    WHAT: ClassVar[str]
    ADVICE: ClassVar[str]
    """For whoever has something else in its place."""

    format: int


N = TypeVar("N", bound=StateRecord)


def encode_state_record(note: StateRecord) -> bytes:
    return msgspec.json.format(msgspec.json.encode(note), indent=1) + b"\n"


def decode_state_record(kind: type[N], data: bytes, path: str) -> N:
    try:
        found = msgspec.json.decode(data, type=kind)
    except msgspec.MsgspecError as error:
        raise Refused(f"{path} is not {kind.WHAT}: {error}", advice=kind.ADVICE) from None
    if found.format > kind.FORMAT:
        raise Refused(f"{path} has format {found.format}, this release knows {kind.FORMAT}")
    return found
