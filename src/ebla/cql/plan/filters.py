"""Relations evaluated row by row: for ALLOW FILTERING, and for virtual tables. Pure."""

from collections.abc import Callable, Sequence

from ebla.cql.parse.statements import (
    ColumnRelation,
    ElementRelation,
    MultiColumnRelation,
    Operator,
    Relation,
    TokenRelation,
)
from ebla.cql.parse.terms import Term, TupleLiteral
from ebla.cql.plan.binder import Binder, BoundRequest, TermReceiver, ValueSource, comparable
from ebla.cql.plan.restrictions import require_value, token_source
from ebla.cql.plan.row_decoder import RowValues
from ebla.model.cql_types import SCALARS, CqlType, ListType, MapType, SetType, TupleType
from ebla.model.errors import InvalidRequest
from ebla.model.schema import Column, TableSchema
from ebla.model.token import composite_key, token_of
from ebla.model.values import split_elements, split_fields

RowTest = Callable[[RowValues], bool]
RowFilter = Callable[[BoundRequest], RowTest]
"""Takes the values of a request, and returns the test for its rows."""

ColumnIndex = Callable[[Column], int]
"""The index of a column's value in a row."""

_COMPARE: dict[Operator, Callable[[bytes, bytes], bool]] = {
    Operator.EQUAL: lambda one, other: one == other,
    Operator.LESS: lambda one, other: one < other,
    Operator.AT_MOST: lambda one, other: one <= other,
    Operator.GREATER: lambda one, other: one > other,
    Operator.AT_LEAST: lambda one, other: one >= other,
}


class FilterBuilder:
    def __init__(self, schema: TableSchema, binder: Binder, index: ColumnIndex) -> None:
        self._schema = schema
        self._binder = binder
        self._index = index

    def filter(self, relation: Relation) -> RowFilter:
        match relation:
            case ColumnRelation():
                return self._column(relation)
            case MultiColumnRelation():
                return self._several(relation)
            case TokenRelation():
                return self._token(relation)
            case ElementRelation():
                return self._element(relation)

    def _source(self, term: Term, name: str, kind: CqlType) -> ValueSource:
        return self._binder.source(term, TermReceiver(name, kind))

    # ---- one column

    def _column(self, relation: ColumnRelation) -> RowFilter:
        column = self._schema.by_name[relation.column]
        match relation.operator:
            case Operator.IN:
                return self._one_of(column, relation)
            case Operator.CONTAINS | Operator.CONTAINS_KEY:
                return self._contains(column, relation)
            case _:
                assert relation.value is not None
                return self._compared(column, relation.operator, relation.value)

    def _compared(self, column: Column, operator: Operator, term: Term) -> RowFilter:
        index, kind, compare = self._index(column), column.type, _COMPARE[operator]
        source = self._source(term, column.name, kind)

        def bound(request: BoundRequest) -> RowTest:
            expected = comparable(kind, require_value(source(request), column.name))

            def test(values: RowValues) -> bool:
                value = values[index]
                return value is not None and compare(comparable(kind, value), expected)

            return test

        return bound

    def _one_of(self, column: Column, relation: ColumnRelation) -> RowFilter:
        index, kind = self._index(column), column.type
        choices = self._choices(column, relation)

        def bound(request: BoundRequest) -> RowTest:
            expected = {comparable(kind, value) for value in choices(request)}

            def test(values: RowValues) -> bool:
                value = values[index]
                return value is not None and comparable(kind, value) in expected

            return test

        return bound

    def _choices(self, column: Column, relation: ColumnRelation) -> Callable[[BoundRequest], list[bytes]]:
        if relation.values is None:
            assert relation.value is not None
            whole = self._source(relation.value, f"in({column.name})", ListType(column.type))
            return lambda request: _elements(require_value(whole(request), column.name))
        sources = [self._source(term, column.name, column.type) for term in relation.values]
        return lambda request: [require_value(source(request), column.name) for source in sources]

    def _contains(self, column: Column, relation: ColumnRelation) -> RowFilter:
        index, kind = self._index(column), column.type
        by_key = relation.operator is Operator.CONTAINS_KEY
        element = _contained(kind, by_key=by_key)
        assert relation.value is not None
        source = self._source(relation.value, f"{'key' if by_key else 'value'}({column.name})", element)

        def bound(request: BoundRequest) -> RowTest:
            expected = require_value(source(request), column.name)

            def test(values: RowValues) -> bool:
                value = values[index]
                if value is None:
                    return False
                if not isinstance(kind, MapType):
                    return expected in split_elements(value, 1)
                parts = split_elements(value, 2)
                return expected in (parts[::2] if by_key else parts[1::2])

            return test

        return bound

    def _element(self, relation: ElementRelation) -> RowFilter:
        column = self._schema.by_name[relation.column]
        kind = column.type
        if not isinstance(kind, MapType):
            raise InvalidRequest(f"Column {column.name} is no map: its elements cannot be compared")
        index, compare = self._index(column), _COMPARE[relation.operator]
        key = self._source(relation.key, f"key({column.name})", kind.key)
        source = self._source(relation.value, f"value({column.name})", kind.value)

        def bound(request: BoundRequest) -> RowTest:
            expected_key = require_value(key(request), column.name)
            expected = comparable(kind.value, require_value(source(request), column.name))

            def test(values: RowValues) -> bool:
                parts = split_elements(values[index] or b"\0\0\0\0", 2)
                found = dict(zip(parts[::2], parts[1::2])).get(expected_key)
                return found is not None and compare(comparable(kind.value, found), expected)

            return test

        return bound

    # ---- several columns

    def _several(self, relation: MultiColumnRelation) -> RowFilter:
        columns = [self._schema.by_name[name] for name in relation.columns]
        indexes = [self._index(column) for column in columns]
        choices = self._tuples(columns, relation)

        def key_of(values: Sequence[bytes | None]) -> tuple[bytes, ...] | None:
            if any(value is None for value in values):
                return None
            return tuple(comparable(column.type, value or b"") for column, value in zip(columns, values))

        def bound(request: BoundRequest) -> RowTest:
            expected = [key_of(one) for one in choices(request)]

            def test(values: RowValues) -> bool:
                found = key_of([values[index] for index in indexes])
                if found is None:
                    return False
                if relation.operator is Operator.IN:
                    return found in expected
                other = expected[0]
                return other is not None and _compare_tuples(relation.operator, found[: len(other)], other)

            return test

        return bound

    def _tuples(
        self, columns: Sequence[Column], relation: MultiColumnRelation
    ) -> Callable[[BoundRequest], list[Sequence[bytes | None]]]:
        kind = TupleType(tuple(column.type for column in columns))
        if relation.values is not None:
            parts = [self._tuple(columns, term) for term in relation.values]
            return lambda request: [part(request) for part in parts]
        assert relation.value is not None
        if relation.operator is Operator.IN:
            whole = self._source(relation.value, f"in({columns[0].name})", ListType(kind))
            return lambda request: [
                _all_of(split_fields(one), columns) for one in _elements(require_value(whole(request), columns[0].name))
            ]
        part = self._tuple(columns, relation.value)
        return lambda request: [part(request)]

    def _tuple(self, columns: Sequence[Column], term: Term) -> Callable[[BoundRequest], Sequence[bytes | None]]:
        if isinstance(term, TupleLiteral):
            if len(term.elements) > len(columns):
                raise InvalidRequest(f"Expected {len(columns)} elements in value tuple, but got {len(term.elements)}")
            sources = [self._source(one, column.name, column.type) for one, column in zip(term.elements, columns)]
            return lambda request: [require_value(source(request), columns[0].name) for source in sources]
        whole = self._source(term, columns[0].name, TupleType(tuple(column.type for column in columns)))
        return lambda request: _all_of(split_fields(require_value(whole(request), columns[0].name)), columns)

    # ---- tokens

    def _token(self, relation: TokenRelation) -> RowFilter:
        columns = self._schema.partition_key
        indexes = [self._index(column) for column in columns]
        source = token_source(self._binder, columns, relation.value)
        compare = _COMPARE[relation.operator]

        def bound(request: BoundRequest) -> RowTest:
            expected = comparable(SCALARS["bigint"], require_value(source(request), "token"))

            def test(values: RowValues) -> bool:
                token = token_of(composite_key([values[index] or b"" for index in indexes]))
                return compare(comparable(SCALARS["bigint"], int(token).to_bytes(8, signed=True)), expected)

            return test

        return bound


def _compare_tuples(operator: Operator, one: tuple[bytes, ...], other: tuple[bytes, ...]) -> bool:
    match operator:
        case Operator.EQUAL:
            return one == other
        case Operator.LESS:
            return one < other
        case Operator.AT_MOST:
            return one <= other
        case Operator.GREATER:
            return one > other
        case _:
            return one >= other


def _contained(kind: CqlType, *, by_key: bool) -> CqlType:
    match kind:
        case ListType(element=element) | SetType(element=element):
            return element
        case MapType(key=key, value=value):
            return key if by_key else value
        case _:
            raise InvalidRequest(f"Cannot use CONTAINS on a {kind}")


def _all_of(values: Sequence[bytes | None], columns: Sequence[Column]) -> Sequence[bytes | None]:
    if len(values) != len(columns):
        raise InvalidRequest(f"Expected {len(columns)} elements in value tuple, but got {len(values)}")
    return values


def _elements(value: bytes) -> list[bytes]:
    try:
        return [part for part in split_elements(value, 1) if part is not None]
    except ValueError as error:
        raise InvalidRequest(f"Invalid list for an IN restriction: {error}") from error
