"""One setting on one node: a value or a tombstone, and the vector clock of its changes."""

from collections.abc import Iterable
from uuid import UUID

import msgspec

from ebla.model.errors import InvalidRequest


class Stamp(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The last change by one actor that an entry includes."""

    actor: UUID
    """Drawn at random by a node whenever it creates a new store."""
    counter: int
    """Of all changes by this actor, of any key. Never used twice."""
    wall_us: int


class Entry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    value: bytes | None
    """None: a tombstone."""
    clock: tuple[Stamp, ...]
    """Sorted by actor."""
    purged_us: int = 0
    """The purge timestamp: up to when tombstones were purged where this key was created. Clocks of entries with
    different ones cannot be compared: the clock of a key that was erased and created again is a new one."""

    @property
    def is_tombstone(self) -> bool:
        return self.value is None

    @property
    def timestamp_us(self) -> int:
        return max([stamp.wall_us for stamp in self.clock], default=0)

    @property
    def newest_stamp(self) -> Stamp | None:
        return max(self.clock, key=lambda stamp: (stamp.wall_us, stamp.actor.int), default=None)


def qualifies(entry: Entry, until_us: int) -> bool:
    """Whether a purge up to this time erases it."""
    return entry.value is None and entry.purged_us <= until_us and entry.timestamp_us <= until_us


def stamped(clock: tuple[Stamp, ...], own: Stamp) -> tuple[Stamp, ...]:
    """The clock with an actor's stamp added or replaced."""
    others = [stamp for stamp in clock if stamp.actor != own.actor]
    return tuple(sorted((*others, own), key=lambda stamp: stamp.actor.int))


def entry_bytes(key: str, entry: Entry) -> int:
    """About what it takes on the wire, on disk and in memory."""
    return len(key) + len(entry.value or b"") + 34 * len(entry.clock) + 16


_encoder = msgspec.msgpack.Encoder(uuid_format="bytes")
_entries = msgspec.msgpack.Decoder(list[tuple[str, Entry]])


def encode_entries(entries: Iterable[tuple[str, Entry]]) -> bytes:
    """A purge timestamp of 0 is left out. A release without purges knows entries of two fields only."""
    return _encoder.encode([(key, entry if entry.purged_us else (entry.value, entry.clock)) for key, entry in entries])


def decode_entries(data: bytes) -> list[tuple[str, Entry]]:
    """Raises `InvalidRequest`."""
    try:
        return _entries.decode(data)
    except msgspec.MsgspecError as error:
        raise InvalidRequest(f"these are no settings: {error}") from None
