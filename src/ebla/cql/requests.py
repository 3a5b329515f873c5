"""Messages of clients, decoded. Pure; raises `BadProtocol` or `InvalidRequest`."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass

from ebla.cql.notation import BodyReader
from ebla.cql.results import BatchItem, BoundValue, Parameters
from ebla.cql.statements import BatchKind
from ebla.model.consistency import ConsistencyLevel
from ebla.model.errors import BadProtocol, InvalidRequest

_ANY, _SERIAL, _LOCAL_SERIAL = 0, 8, 9


class QueryFlag(enum.IntFlag):
    VALUES = 0x01
    SKIP_METADATA = 0x02
    PAGE_SIZE = 0x04
    PAGING_STATE = 0x08
    SERIAL_CONSISTENCY = 0x10
    TIMESTAMP = 0x20
    NAMES = 0x40


# As plain numbers: these are looked at with every request.
_VALUES, _SKIP, _SIZE, _STATE, _SERIAL_FLAG, _TIMESTAMP, _NAMES = (int(flag) for flag in QueryFlag)


@dataclass(frozen=True, slots=True)
class Startup:
    options: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Query:
    text: str
    parameters: Parameters


@dataclass(frozen=True, slots=True)
class Prepare:
    text: str


@dataclass(frozen=True, slots=True)
class Execute:
    id: bytes
    parameters: Parameters


@dataclass(frozen=True, slots=True)
class BatchRequest:
    kind: BatchKind
    items: tuple[BatchItem, ...]
    parameters: Parameters


@dataclass(frozen=True, slots=True)
class Register:
    events: tuple[str, ...]


def read_startup(reader: BodyReader) -> Startup:
    return Startup(reader.string_map())


def read_query(reader: BodyReader, version: int) -> Query:
    return Query(reader.long_string(), read_parameters(reader, version))


def read_prepare(reader: BodyReader) -> Prepare:
    return Prepare(reader.long_string())


def read_execute(reader: BodyReader, version: int) -> Execute:
    return Execute(reader.short_bytes(), read_parameters(reader, version))


def read_register(reader: BodyReader) -> Register:
    return Register(tuple(reader.string_list()))


def read_parameters(reader: BodyReader, _version: int) -> Parameters:
    level = read_level(reader)
    flags = reader.byte()
    values: list[BoundValue] = []
    names: list[str] | None = None
    if flags & _VALUES:
        count = reader.short()
        if flags & _NAMES:
            names = []
            for _ in range(count):
                names.append(reader.string())
                values.append(reader.value())
        else:
            values = [reader.value() for _ in range(count)]
    page_size = reader.integer() if flags & _SIZE else None
    paging_state = reader.data() if flags & _STATE else None
    if flags & _SERIAL_FLAG:
        reader.short()
    timestamp_us = reader.long() if flags & _TIMESTAMP else None
    return Parameters(
        level,
        values,
        names,
        page_size if page_size is not None and page_size > 0 else None,
        paging_state,
        timestamp_us,
        bool(flags & _SKIP),
    )


def read_batch(reader: BodyReader) -> BatchRequest:
    kind = reader.byte()
    if kind not in (0, 1, 2):
        raise BadProtocol(f"Invalid batch type {kind}")
    items = []
    for _ in range(reader.short()):
        how = reader.byte()
        if how not in (0, 1):
            raise BadProtocol(f"Invalid query kind in BATCH messages. Must be 0 or 1 but got {how}")
        query: str | bytes = reader.long_string() if how == 0 else reader.short_bytes()
        items.append(BatchItem(query, [reader.value() for _ in range(reader.short())]))
    level = read_level(reader)
    flags = reader.byte() if not reader.is_at_end else 0
    if flags & _SERIAL_FLAG:
        reader.short()
    timestamp_us = reader.long() if flags & _TIMESTAMP else None
    return BatchRequest(BatchKind(kind), tuple(items), Parameters(level, timestamp_us=timestamp_us))


_LEVELS = {int(level): level for level in ConsistencyLevel}
# A write at ANY may be kept by hints alone elsewhere; here it needs a replica.
_LEVELS[_ANY] = ConsistencyLevel.ONE


def read_level(reader: BodyReader) -> ConsistencyLevel:
    number = reader.short()
    level = _LEVELS.get(number)
    if level is not None:
        return level
    if number in (_SERIAL, _LOCAL_SERIAL):
        raise InvalidRequest("SERIAL consistency is for lightweight transactions, which this release does not have")
    raise BadProtocol(f"Unknown code {number} for a consistency level")
