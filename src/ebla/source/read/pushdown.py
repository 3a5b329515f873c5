"""Filter pushdown: which of Spark's filters nodes can apply exactly, by keys. Pure.

Spark does not apply a pushed filter again, so a filter is pushed only where CQL's order and equality are the same as
Spark's for the column. Texts compare by bytes on both sides. Floating-point numbers do not compare alike, nor do types
that Spark sees as text (uuids except for equality, varints, decimals, addresses).
"""

import datetime
import itertools
import math
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

from ebla.model.cql_types import Scalar, ScalarType
from ebla.model.errors import InvalidRequest, TooLarge
from ebla.model.schema import Column, ColumnKind, TableSchema
from ebla.model.selection import ColumnSelector, KeyCondition, KeyOperator, SelectorKind
from ebla.model.token import TOKEN_MAX, TOKEN_MIN, WHOLE_RING, Token, TokenRange, composite_key, token_of
from ebla.model.values import encode
from ebla.source.read.planner import KeyRestrictions, clip_range
from ebla.storage.codec.key_codec import partition_prefix

PARTITIONS_MAX = 4_096
"""Read one by one; for more of them a scan that skips rows is better."""

_OPERATORS: Mapping[type[Filter], KeyOperator] = {
    EqualTo: KeyOperator.EQUAL,
    EqualNullSafe: KeyOperator.EQUAL,
    LessThan: KeyOperator.LESS,
    LessThanOrEqual: KeyOperator.LESS_OR_EQUAL,
    GreaterThan: KeyOperator.GREATER,
    GreaterThanOrEqual: KeyOperator.GREATER_OR_EQUAL,
    In: KeyOperator.IN,
}
UNRESTRICTED = KeyRestrictions()
_EQUALITY = (KeyOperator.EQUAL, KeyOperator.IN)
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MILLISECOND = datetime.timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class PushedFilters(KeyRestrictions):
    left: tuple[Filter, ...] = ()
    """For Spark to apply."""


def push_filters(
    schema: TableSchema,
    asked: Sequence[ColumnSelector],
    filters: Sequence[Filter],
    start: KeyRestrictions = UNRESTRICTED,
) -> PushedFilters:
    """`start`: the conditions of the option `where`, which hold before any filter."""
    pushdown = _Pushdown(schema, {one.label: one for one in asked}, start)
    left = [one for one in filters if not pushdown.push(one)]
    left = [one for one in left if not pushdown.is_never_null(one)]
    conditions = pushdown.conditions
    partitions = _partitions(schema, conditions)
    if partitions is not None:
        keys = {column.name for column in schema.partition_key}
        conditions = [
            one for one in conditions if one.column not in keys or one.operator not in _EQUALITY
        ]  # conditions other than equality still apply
        pushdown.narrow(_just(token) for token in sorted({token for token, _ in partitions}))
    return PushedFilters(
        conditions=tuple(conditions),
        ranges=None if pushdown.ranges is None else tuple(pushdown.ranges),
        partitions=None if partitions is None else tuple(sorted(partition_prefix(*one) for one in partitions)),
        left=tuple(left),
    )


class _Pushdown:
    def __init__(self, schema: TableSchema, shown: Mapping[str, ColumnSelector], base: KeyRestrictions) -> None:
        self._schema, self._shown = schema, shown
        self.conditions = list(base.conditions)
        self.ranges = None if base.ranges is None else list(base.ranges)

    def push(self, one: Filter) -> bool:
        """Whether nodes apply the filter completely."""
        operator, asked = _OPERATORS.get(type(one)), self._selector_of(one)
        if operator is None or asked is None:
            return False
        value = one.value  # type: ignore[attr-defined]  # all of those operators have one
        values = [part for part in (value if operator is KeyOperator.IN else [value]) if part is not None]
        if not values:
            return False
        if asked.kind is SelectorKind.TOKEN:
            found = token_ranges(operator, values)
            if found is not None:
                self.narrow(found)
            return found is not None
        column = self._schema.by_name.get(asked.name)
        condition = None if column is None else _condition(column, operator, values)
        if condition is not None:
            self.conditions.append(condition)
        return condition is not None

    def narrow(self, ranges: Iterable[TokenRange]) -> None:
        known = [WHOLE_RING] if self.ranges is None else self.ranges
        self.ranges = [part for one in ranges for part in clip_range(one, known)]

    def is_never_null(self, one: Filter) -> bool:
        """A partition key and a token are never null, nor is a clustering column that meets a condition."""
        asked = self._selector_of(one) if isinstance(one, IsNotNull) else None
        if asked is None or asked.kind is not SelectorKind.VALUE:
            return asked is not None and asked.kind is SelectorKind.TOKEN
        met = (condition.column for condition in self.conditions)
        return asked.name in (*met, *(column.name for column in self._schema.partition_key))

    def _selector_of(self, one: Filter) -> ColumnSelector | None:
        attribute: tuple[str, ...] = getattr(one, "attribute", ())
        return self._shown.get(attribute[0]) if len(attribute) == 1 else None


# ---- values


def _condition(column: Column, operator: KeyOperator, values: Sequence[Any]) -> KeyCondition | None:
    """None where it would not mean exactly the same."""
    if column.kind not in (ColumnKind.PARTITION_KEY, ColumnKind.CLUSTERING) or not isinstance(column.type, ScalarType):
        return None
    rule = _RULES.get(column.type.scalar)
    if rule is None or (rule.is_equality_only and operator not in _EQUALITY):
        return None
    wire = []
    for value in values:
        plain = rule.plain(value)
        if plain is None:
            return None
        try:
            wire.append(encode(column.type, plain))
        except InvalidRequest:
            return None
    return KeyCondition(column.name, operator, tuple(dict.fromkeys(wire)))


def _integer(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _boolean(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _blob(value: Any) -> bytes | None:
    return bytes(value) if isinstance(value, bytes | bytearray) else None


def _uuid(value: Any) -> uuid.UUID | None:
    """Only in the canonical form: another spelling equals none of the texts Spark sees."""
    try:
        found = uuid.UUID(value) if isinstance(value, str) else None
    except ValueError:
        return None
    return found if found is not None and str(found) == value else None


def _days(value: Any) -> int | None:
    if not isinstance(value, datetime.date) or isinstance(value, datetime.datetime):
        return None
    return (value - _EPOCH.date()).days


def _milliseconds(value: Any) -> int | None:
    """A number is in milliseconds already: the column is read as a number."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if not isinstance(value, datetime.datetime) or value.tzinfo is None:
        return None
    found, rest = divmod(value - _EPOCH, _MILLISECOND)
    return None if rest else found


@dataclass(frozen=True, slots=True)
class _Rule:
    plain: Callable[[Any], object | None]
    is_equality_only: bool = False


_RULES: Mapping[Scalar, _Rule] = {
    Scalar.ASCII: _Rule(_text),
    Scalar.BIGINT: _Rule(_integer),
    Scalar.BLOB: _Rule(_blob, is_equality_only=True),
    Scalar.BOOLEAN: _Rule(_boolean, is_equality_only=True),
    Scalar.DATE: _Rule(_days),
    Scalar.INT: _Rule(_integer),
    Scalar.SMALLINT: _Rule(_integer),
    Scalar.TEXT: _Rule(_text),
    Scalar.TIME: _Rule(_integer),
    Scalar.TIMESTAMP: _Rule(_milliseconds),
    Scalar.TIMEUUID: _Rule(_uuid, is_equality_only=True),
    Scalar.TINYINT: _Rule(_integer),
    Scalar.UUID: _Rule(_uuid, is_equality_only=True),
}


# ---- tokens and partitions


def token_ranges(operator: KeyOperator, values: Sequence[Any]) -> list[TokenRange] | None:
    """None where the values are not tokens."""
    numbers = [_integer(value) for value in values]
    known = [number for number in numbers if number is not None]
    if len(known) < len(numbers):
        return None
    if operator in _EQUALITY:
        tokens = sorted({number for number in known if TOKEN_MIN < number <= TOKEN_MAX})
        return [_just(Token(number)) for number in tokens]
    bound = known[0]
    match operator:
        case KeyOperator.LESS:
            return _between(TOKEN_MIN, bound - 1)
        case KeyOperator.LESS_OR_EQUAL:
            return _between(TOKEN_MIN, bound)
        case KeyOperator.GREATER:
            return _between(bound, TOKEN_MAX)
        case _:
            return _between(bound - 1, TOKEN_MAX)


def _between(start: int, end: int) -> list[TokenRange]:
    start, end = max(start, TOKEN_MIN), min(end, TOKEN_MAX)
    return [TokenRange(Token(start), Token(end))] if start < end else []


def _just(token: Token) -> TokenRange:
    return TokenRange(Token(token - 1), token)


def _partitions(schema: TableSchema, conditions: Iterable[KeyCondition]) -> list[tuple[Token, bytes]] | None:
    """Token and key of each partition that can match; None where the key is not fully restricted, or they are too
    many."""
    allowed: dict[str, list[bytes]] = {}
    for condition in conditions:
        if condition.operator in _EQUALITY:
            known = allowed.get(condition.column)
            both = [value for value in condition.values if known is None or value in known]
            allowed[condition.column] = both
    parts = [allowed.get(column.name) for column in schema.partition_key]
    named = [part for part in parts if part is not None]
    if len(named) < len(parts) or math.prod(len(part) for part in named) > PARTITIONS_MAX:
        return None
    try:
        keys = [composite_key(values) for values in itertools.product(*named)]
    except TooLarge:
        return None
    return [(token_of(key), key) for key in keys if key]
