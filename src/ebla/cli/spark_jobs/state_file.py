"""The file in which an export or import keeps its progress, as readable JSON."""

import os
from pathlib import Path
from typing import ClassVar, TypeVar

import msgspec

from ebla.model.errors import Refused


def replace_file(path: Path, content: bytes) -> None:
    """Atomic: a crash leaves the old content or the new one. Durable when it returns."""
    fresh = path.with_name(f".{path.name}.new")
    with fresh.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)


class StateRecord(msgspec.Struct, frozen=True, kw_only=True):
    FORMAT: ClassVar[int]
    """The newest known format; a record names its own."""
    WHAT: ClassVar[str]
    ADVICE: ClassVar[str]
    """For a user whose file is something else."""

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
