"""Entries as text: `purged|{actor:(counter,timestamp), …}|value`. `D` as the value is a tombstone, `-` is no entry."""

import re
from uuid import UUID

from ebla.model.errors import InvalidRequest
from ebla.settings_store.entry import Entry, Stamp

ABSENT = "-"
TOMBSTONE = "D"
EXAMPLE = "0|{a:(1,10), b:(2,12)}|x"

_ENTRY = re.compile(r"(\d+)\|\{(.*?)\}\|(.*)", re.DOTALL)
_STAMP = re.compile(r"\s*([\w-]+):\((\d+),\s*(\d+)\)\s*")
_STAMPS = re.compile(rf"(?:{_STAMP.pattern}(?:,(?!\s*$)|$))*")


def parse_entry(text: str) -> Entry | None:
    if text == ABSENT:
        return None
    found = _ENTRY.fullmatch(text)
    if found is None or not _STAMPS.fullmatch(found[2]):
        raise InvalidRequest(f"{text!r} is no entry", advice=f"write it like {EXAMPLE}; D is a tombstone, - is none")
    stamps = [Stamp(_actor(name), int(counter), int(wall)) for name, counter, wall in _STAMP.findall(found[2])]
    actors = [stamp.actor for stamp in stamps]
    if len(set(actors)) != len(actors):
        raise InvalidRequest(f"{text!r} has two stamps of one actor", advice="each actor has one stamp in a clock")
    value = None if found[3] == TOMBSTONE else found[3].encode()
    return Entry(value, tuple(sorted(stamps, key=lambda stamp: stamp.actor.int)), int(found[1]))


def format_entry(entry: Entry | None) -> str:
    if entry is None:
        return ABSENT
    stamps = ", ".join(f"{_name(stamp.actor)}:({stamp.counter},{stamp.wall_us})" for stamp in entry.clock)
    value = TOMBSTONE if entry.value is None else entry.value.decode(errors="replace")
    return f"{entry.purged_us}|{{{stamps}}}|{value}"


def _actor(name: str) -> UUID:
    """A short name is the beginning of its id, so names sort as their ids do."""
    if len(name) == 36:
        try:
            return UUID(name)
        except ValueError:
            raise InvalidRequest(f"{name!r} is no actor", advice="write an id, or a name of up to 16 letters") from None
    if len(name.encode()) > 16:
        raise InvalidRequest(f"{name!r} is too long for an actor", advice="write an id, or a name of up to 16 letters")
    return UUID(bytes=name.encode().ljust(16, b"\0"))


def _name(actor: UUID) -> str:
    short = actor.bytes.rstrip(b"\0")
    return short.decode() if re.fullmatch(rb"[\w-]{1,16}", short) else str(actor)
