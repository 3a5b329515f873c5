"""Scalar functions of CQL. Aggregates, and functions of stored cells (writetime, ttl), are in other modules."""

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

from ebla.model.cql_types import SCALARS, CqlType, Scalar, ScalarType
from ebla.model.errors import InvalidRequest
from ebla.model.token import composite_key, token_of
from ebla.model.values import validation_error

_UUID_EPOCH_100NS = 0x01B21DD213814000
"""1970 in the unit of timeuuids: 100 ns since 1582."""
_MILLISECONDS_PER_DAY = 86_400_000
_DATE_BIAS = 1 << 31


class CallContext(Protocol):
    """What a function may use of the request."""

    now_us: int

    def random_bytes(self, count: int) -> bytes: ...


Values = Sequence[bytes | None]
FunctionBody = Callable[[Values, CallContext], bytes | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class CqlFunction:
    name: str
    arguments: tuple[CqlType, ...]
    result: CqlType
    work: FunctionBody
    is_pure: bool = True
    """The result depends on the arguments alone, so it may be computed once."""


_TEXT, _BLOB, _BIGINT = SCALARS["text"], SCALARS["blob"], SCALARS["bigint"]
_TIMEUUID, _UUID = SCALARS["timeuuid"], SCALARS["uuid"]
_TIMESTAMP, _DATE, _TIME = SCALARS["timestamp"], SCALARS["date"], SCALARS["time"]


# ---- times


def timeuuid_of(now_us: int, node: bytes) -> bytes:
    """A version 1 UUID of this microsecond; `node` is 8 random bytes for clock sequence and node."""
    ticks = now_us * 10 + _UUID_EPOCH_100NS + node[0] % 10
    sequence = int.from_bytes(node[:2]) & 0x3FFF | 0x8000
    return _time_part(ticks) + sequence.to_bytes(2) + bytes((node[2] | 1,)) + node[3:8]


def _time_part(ticks: int) -> bytes:
    low, middle, high = ticks & 0xFFFFFFFF, ticks >> 32 & 0xFFFF, ticks >> 48 & 0x0FFF | 0x1000
    return low.to_bytes(4) + middle.to_bytes(2) + high.to_bytes(2)


def timeuuid_ms(data: bytes) -> int:
    return (uuid.UUID(bytes=data).time - _UUID_EPOCH_100NS) // 10_000


def _bound_timeuuid(rest: bytes) -> FunctionBody:
    """The lowest or highest timeuuid of a millisecond, in Cassandra's order of signed bytes."""

    def work(values: Values, _context: CallContext) -> bytes | None:
        if not values[0]:
            return None
        milliseconds = int.from_bytes(values[0], signed=True)
        ticks = milliseconds * 10_000 + _UUID_EPOCH_100NS + (9_999 if rest[0] == 0x7F else 0)
        return _time_part(ticks) + rest

    return work


def _long(number: int) -> bytes:
    return number.to_bytes(8, signed=True)


def _day(milliseconds: int) -> bytes:
    day = milliseconds // _MILLISECONDS_PER_DAY
    if not -_DATE_BIAS <= day < _DATE_BIAS:
        raise InvalidRequest(f"{milliseconds} ms since 1970 is out of the range of dates")
    return (day + _DATE_BIAS).to_bytes(4)


def _date_ms(data: bytes) -> int:
    return (int.from_bytes(data) - _DATE_BIAS) * _MILLISECONDS_PER_DAY


def _conversion(number: Callable[[bytes], int], shape: Callable[[int], bytes]) -> FunctionBody:
    def work(values: Values, _context: CallContext) -> bytes | None:
        return shape(number(values[0])) if values[0] else None

    return work


def _signed(data: bytes) -> int:
    return int.from_bytes(data, signed=True)


_TIME_SOURCES: tuple[tuple[CqlType, Callable[[bytes], int]], ...] = (
    (_TIMEUUID, timeuuid_ms),
    (_TIMESTAMP, _signed),
    (_DATE, _date_ms),
)


def _conversions() -> list[CqlFunction]:
    works: list[tuple[tuple[str, ...], CqlType, CqlType, FunctionBody]] = [
        (("dateof",), _TIMEUUID, _TIMESTAMP, _conversion(timeuuid_ms, _long)),
        (("unixtimestampof",), _TIMEUUID, _BIGINT, _conversion(timeuuid_ms, _long)),
        (("mintimeuuid", "min_timeuuid"), _TIMESTAMP, _TIMEUUID, _bound_timeuuid(b"\x80" * 8)),
        (("maxtimeuuid", "max_timeuuid"), _TIMESTAMP, _TIMEUUID, _bound_timeuuid(b"\x7f" * 8)),
    ]
    for kind, number in _TIME_SOURCES:
        works += [
            (("todate", "to_date"), kind, _DATE, _conversion(number, _day)),
            (("totimestamp", "to_timestamp"), kind, _TIMESTAMP, _conversion(number, _long)),
            (("tounixtimestamp", "to_unix_timestamp"), kind, _BIGINT, _conversion(number, _long)),
        ]
    return [
        CqlFunction(name=name, arguments=(kind,), result=result, work=work)
        for names, kind, result, work in works
        for name in names
    ]


def _now(_values: Values, context: CallContext) -> bytes:
    return timeuuid_of(context.now_us, context.random_bytes(8))


def _current() -> list[CqlFunction]:
    def time_of_day(_values: Values, context: CallContext) -> bytes:
        return _long(context.now_us % (_MILLISECONDS_PER_DAY * 1000) * 1000)

    works: tuple[tuple[tuple[str, ...], CqlType, FunctionBody], ...] = (
        (("now", "currenttimeuuid", "current_timeuuid"), _TIMEUUID, _now),
        (
            ("currenttimestamp", "current_timestamp"),
            _TIMESTAMP,
            lambda _values, context: _long(context.now_us // 1000),
        ),
        (("currentdate", "current_date"), _DATE, lambda _values, context: _day(context.now_us // 1000)),
        (("currenttime", "current_time"), _TIME, time_of_day),
        (("uuid",), _UUID, lambda _values, context: _random_uuid(context)),
    )
    return [
        CqlFunction(name=name, arguments=(), result=kind, work=work, is_pure=False)
        for names, kind, work in works
        for name in names
    ]


def _random_uuid(context: CallContext) -> bytes:
    return uuid.UUID(bytes=context.random_bytes(16), version=4).bytes


def token_function(partition_key: tuple[CqlType, ...]) -> CqlFunction:
    """token() of a table: it takes values of the types of the partition key."""

    def work(values: Values, _context: CallContext) -> bytes | None:
        parts = [value for value in values if value is not None]
        return _long(int(token_of(composite_key(parts)))) if len(parts) == len(values) else None

    return CqlFunction(name="token", arguments=partition_key, result=_BIGINT, work=work)


# ---- blobs


def _same(values: Values, _context: CallContext) -> bytes | None:
    return values[0]


def _checked(kind: ScalarType) -> FunctionBody:
    def work(values: Values, _context: CallContext) -> bytes | None:
        data = values[0]
        if data is not None and (reason := validation_error(kind, data)) is not None:
            raise InvalidRequest(f"In call to function blobas{kind}, value 0x{data.hex()} is no {kind}: {reason}")
        return data

    return work


def _blobs() -> list[CqlFunction]:
    made = []
    names = [scalar.value for scalar in Scalar if scalar is not Scalar.BLOB] + ["varchar"]
    for name in names:
        kind = SCALARS[name]
        made += [
            CqlFunction(name=f"{name}asblob", arguments=(kind,), result=_BLOB, work=_same),
            CqlFunction(name=f"{name}_as_blob", arguments=(kind,), result=_BLOB, work=_same),
            CqlFunction(name=f"blobas{name}", arguments=(_BLOB,), result=kind, work=_checked(kind)),
            CqlFunction(name=f"blob_as_{name}", arguments=(_BLOB,), result=kind, work=_checked(kind)),
        ]
    return made


def _by_name(functions: Sequence[CqlFunction]) -> dict[str, tuple[CqlFunction, ...]]:
    found: dict[str, list[CqlFunction]] = {}
    for function in functions:
        found.setdefault(function.name, []).append(function)
    return {name: tuple(several) for name, several in found.items()}


FUNCTIONS = MappingProxyType(_by_name([*_current(), *_conversions(), *_blobs()]))
"""The overloads of each name."""


AGGREGATE_NAMES = frozenset({"count", "min", "max", "sum", "avg"})


def overloads_of(name: str) -> tuple[CqlFunction, ...]:
    """Raises `InvalidRequest` for an unknown name, and for an aggregate, which has a value only in a select list."""
    bare = name.removeprefix("system.")
    found = FUNCTIONS.get(bare)
    if bare in AGGREGATE_NAMES:
        raise InvalidRequest(f"Aggregation functions are not supported in the where clause or as values: {name}")
    if found is None:
        raise InvalidRequest(f"Unknown function '{name}'")
    return found
