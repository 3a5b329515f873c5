"""Relations evaluated row by row: for ALLOW FILTERING, and for virtual tables. Pure."""

from collections.abc import Callable, Sequence
from operator import contains, eq, ge, gt, le, lt
from typing import Any

from ebla.cql.parse.statements import (
    ColumnRelation,
    ElementRelation,
    MultiColumnRelation,
    Operator,
    Relation,
    TokenRelation,
)
from ebla.cql.parse.terms import Term
from ebla.cql.plan.binder import Binder, BoundRequest, TermReceiver, ValueSource, comparable
from ebla.cql.plan.restrictions import ComparedRelation, compared_values, require_value, token_source
from ebla.cql.plan.row_decoder import RowValues
from ebla.model.cql_types import CqlType, ListType, MapType, SetType
from ebla.model.errors import InvalidRequest
from ebla.model.schema import Column, TableSchema
from ebla.model.token import composite_key, token_of
from ebla.model.values import split_elements

RowTest = Callable[[RowValues], bool]
RowFilter = Callable[[BoundRequest], RowTest]
"""Takes the values of a request, and returns the test for its rows."""

ColumnIndex = Callable[[Column], int]
"""The index of a column's value in a row."""

_COMPARE: dict[Operator, Callable[[Any, Any], bool]] = {
    Operator.EQUAL: eq,
    Operator.LESS: lt,
    Operator.AT_MOST: le,
    Operator.GREATER: gt,
    Operator.AT_LEAST: ge,
}


def _row_filter(
    found: Callable[[RowValues], Any], expected: Callable[[BoundRequest], Any], compare: Callable[[Any, Any], bool]
) -> RowFilter:
    """Compares what is found in a row (None: no value, and the row does not pass) with what the request expects."""

    def bound(request: BoundRequest) -> RowTest:
        other = expected(request)

        def test(values: RowValues) -> bool:
            value = found(values)
            return value is not None and compare(value, other)

        return test

    return bound


class FilterBuilder:
    def __init__(self, schema: TableSchema, binder: Binder, index: ColumnIndex) -> None:
        self._schema = schema
        self._binder = binder
        self._index = index

    def filter(self, relation: Relation) -> RowFilter:
        match relation:
            case ColumnRelation(operator=Operator.CONTAINS | Operator.CONTAINS_KEY):
                return self._contains(relation)
            case ColumnRelation(column=name):
                return self._compared([self._schema.by_name[name]], relation)
            case MultiColumnRelation(columns=names):
                return self._compared([self._schema.by_name[name] for name in names], relation)
            case TokenRelation():
                return self._token(relation)
            case ElementRelation():
                return self._element(relation)

    def _source(self, term: Term, name: str, kind: CqlType) -> ValueSource:
        return self._binder.source(term, TermReceiver(name, kind))

    def _compared(self, columns: Sequence[Column], relation: ComparedRelation) -> RowFilter:
        kinds, indexes = [column.type for column in columns], [self._index(column) for column in columns]
        compared = compared_values(self._binder, columns, relation)

        def key_of(values: Sequence[bytes | None]) -> tuple[bytes, ...] | None:
            known = [value for value in values if value is not None]
            return tuple(map(comparable, kinds, known)) if len(known) == len(values) else None

        def found(values: RowValues) -> tuple[bytes, ...] | None:
            return key_of([values[index] for index in indexes])

        if relation.operator is Operator.IN:
            return _row_filter(
                found, lambda request: set(map(key_of, compared(request))), lambda key, keys: key in keys
            )
        compare = _COMPARE[relation.operator]
        # A tuple may have fewer values than columns.
        return _row_filter(
            found, lambda request: key_of(compared(request)[0]), lambda one, other: compare(one[: len(other)], other)
        )

    def _contains(self, relation: ColumnRelation) -> RowFilter:
        column = self._schema.by_name[relation.column]
        index, kind = self._index(column), column.type
        by_key = relation.operator is Operator.CONTAINS_KEY
        assert relation.value is not None
        name = f"{'key' if by_key else 'value'}({column.name})"
        source = self._source(relation.value, name, _contained(kind, by_key=by_key))

        def elements(values: RowValues) -> Sequence[bytes | None] | None:
            value = values[index]
            if value is None or not isinstance(kind, MapType):
                return None if value is None else split_elements(value, 1)
            parts = split_elements(value, 2)
            return parts[::2] if by_key else parts[1::2]

        return _row_filter(elements, lambda request: require_value(source(request), column.name), contains)

    def _element(self, relation: ElementRelation) -> RowFilter:
        column = self._schema.by_name[relation.column]
        kind = column.type
        assert isinstance(kind, MapType), "checked with all relations"
        index, compare, element = self._index(column), _COMPARE[relation.operator], kind.value
        key_source = self._source(relation.key, f"key({column.name})", kind.key)
        source = self._source(relation.value, f"value({column.name})", element)

        def elements(values: RowValues) -> dict[bytes | None, bytes | None]:
            parts = split_elements(values[index] or b"\0\0\0\0", 2)
            return dict(zip(parts[::2], parts[1::2]))

        def expected(request: BoundRequest) -> tuple[bytes, bytes]:
            key = require_value(key_source(request), column.name)
            return key, comparable(element, require_value(source(request), column.name))

        def passes(found: dict[bytes | None, bytes | None], entry: tuple[bytes, bytes]) -> bool:
            value = found.get(entry[0])
            return value is not None and compare(comparable(element, value), entry[1])

        return _row_filter(elements, expected, passes)

    def _token(self, relation: TokenRelation) -> RowFilter:
        columns = self._schema.partition_key
        indexes = [self._index(column) for column in columns]
        source = token_source(self._binder, relation.value)

        def token(values: RowValues) -> int:
            return int(token_of(composite_key([values[index] or b"" for index in indexes])))

        def expected(request: BoundRequest) -> int:
            return int.from_bytes(require_value(source(request), "token"), signed=True)

        return _row_filter(token, expected, _COMPARE[relation.operator])


def _contained(kind: CqlType, *, by_key: bool) -> CqlType:
    match kind:
        case ListType(element=element) | SetType(element=element):
            return element
        case MapType(key=key, value=value):
            return key if by_key else value
        case _:
            raise InvalidRequest(f"Cannot use CONTAINS on a {kind}")
