"""Compiles the select list to output columns. Pure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from ebla.cql.parse.statements import SelectItem
from ebla.cql.parse.terms import ColumnName, FunctionCall, Term, TypeHint
from ebla.cql.plan import aggregates
from ebla.cql.plan.aggregates import Accumulator
from ebla.cql.plan.binder import Binder, BoundRequest, TermReceiver, ValueSource, is_assignable
from ebla.cql.plan.functions import CqlFunction, overloads_of
from ebla.cql.plan.row_decoder import DecodedRow
from ebla.model.cql_types import SCALARS, CqlType, is_multi_cell
from ebla.model.errors import InvalidRequest
from ebla.model.rows import Cell
from ebla.model.schema import Column, ColumnKind, TableSchema
from ebla.model.token import composite_key, token_of
from ebla.wire.cql.messages import ColumnSpec, Unset

OutputValue = Callable[[DecodedRow, BoundRequest], bytes | None]
_TIMES = {"writetime": SCALARS["bigint"], "ttl": SCALARS["int"]}


@dataclass(slots=True)
class NeededColumns:
    """The columns that a plan needs, without duplicates, and their indexes in its rows."""

    columns: list[Column] = field(default_factory=list)
    with_cells: bool = False
    _indexes: dict[int, int] = field(default_factory=dict)

    def index(self, column: Column) -> int:
        found = self._indexes.get(column.number)
        if found is None:
            found = self._indexes[column.number] = len(self.columns)
            self.columns.append(column)
        return found


class OutputColumn(msgspec.Struct, frozen=True, kw_only=True):
    spec: ColumnSpec
    value: OutputValue
    index: int | None = None
    """For a plain column: its index in the row."""
    accumulator: Callable[[], Accumulator] | None = None
    """Creates the accumulator of an aggregate, which adds `value` of every row."""


@dataclass(frozen=True, slots=True)
class _Typed:
    name: str
    type: CqlType
    value: OutputValue


class SelectionBuilder:
    def __init__(self, schema: TableSchema, binder: Binder, needs: NeededColumns) -> None:
        self._schema = schema
        self._binder = binder
        self._needs = needs

    def outputs(self, selectors: Sequence[SelectItem]) -> tuple[OutputColumn, ...]:
        if not selectors:
            return tuple(self._column(column, column.name) for column in self._schema.columns)
        return tuple(self._output(selector) for selector in selectors)

    def _output(self, selector: SelectItem) -> OutputColumn:
        item, alias = selector.item, selector.alias
        match item:
            case ColumnName(name=name):
                return self._column(self._named(name), alias or name)
            case FunctionCall(name=name) if name.removeprefix("system.") in aggregates.AGGREGATE_NAMES:
                return self._aggregate(item, alias)
            case _:
                typed = self._argument(item)
                return OutputColumn(spec=self._spec(alias or typed.name, typed.type), value=typed.value)

    def _spec(self, name: str, kind: CqlType) -> ColumnSpec:
        return ColumnSpec(keyspace=self._schema.keyspace, table=self._schema.name, name=name, type=kind)

    def _named(self, name: str) -> Column:
        column = self._schema.by_name.get(name)
        if column is None:
            raise InvalidRequest(f"Undefined column name {name} in table {self._schema.full_name}")
        return column

    def _column(self, column: Column, name: str) -> OutputColumn:
        index = self._needs.index(column)
        return OutputColumn(
            spec=self._spec(name, column.type), value=lambda found, _request: found.values[index], index=index
        )

    # ---- calls

    def _aggregate(self, call: FunctionCall, alias: str | None) -> OutputColumn:
        bare = call.name.removeprefix("system.")
        if not call.arguments:
            kind, accumulator = aggregates.aggregate_function(bare, None)
            return OutputColumn(spec=self._spec(alias or "count", kind), value=_no_value, accumulator=accumulator)
        if len(call.arguments) > 1:
            raise InvalidRequest(f"Invalid number of arguments in call to function {bare}: 1 required")
        argument = self._argument(call.arguments[0])
        kind, accumulator = aggregates.aggregate_function(bare, argument.type)
        return OutputColumn(
            spec=self._spec(alias or f"system.{bare}({argument.name})", kind),
            value=argument.value,
            accumulator=accumulator,
        )

    def _argument(self, argument: Term | ColumnName) -> _Typed:
        if isinstance(argument, ColumnName):
            column = self._named(argument.name)
            index = self._needs.index(column)
            return _Typed(column.name, column.type, lambda found, _request: found.values[index])
        if isinstance(argument, FunctionCall):
            return self._call(argument)
        if not isinstance(argument, TypeHint):
            raise InvalidRequest("the type of a value in the select list is not known; write it as (type) value")
        source = self._binder.source(argument.term, TermReceiver("[selection]", argument.type))
        return _Typed(f"({argument.type})", argument.type, _from_request(source))

    def _call(self, call: FunctionCall) -> _Typed:
        bare = call.name.removeprefix("system.")
        if bare in _TIMES:
            return self._time(bare, call)
        if bare == "token":
            return self._token(call)
        if bare in aggregates.AGGREGATE_NAMES:
            raise InvalidRequest("aggregate functions cannot be used as arguments of other functions")
        candidates = overloads_of(call.name)
        arguments = [self._matched(candidates, call, at) for at in range(len(call.arguments))]
        function = _fitting(candidates, call, arguments)
        values = [one.value for one in arguments]

        def value(found: DecodedRow, request: BoundRequest) -> bytes | None:
            return function.work([one(found, request) for one in values], request)

        name = f"system.{bare}({', '.join(one.name for one in arguments)})"
        return _Typed(name, function.result, value)

    def _matched(self, candidates: Sequence[CqlFunction], call: FunctionCall, at: int) -> _Typed:
        """An argument; a constant or marker gets the type of the function's parameter."""
        argument = call.arguments[at]
        if isinstance(argument, ColumnName | FunctionCall | TypeHint):
            return self._argument(argument)
        for function in candidates:
            if at < len(function.arguments) and self._binder.could_have_type(argument, function.arguments[at]):
                kind = function.arguments[at]
                source = self._binder.source(argument, TermReceiver(f"arg{at}({call.name})", kind))
                return _Typed("?", kind, _from_request(source))
        raise InvalidRequest(f"Invalid call to function {call.name}, none of its type signatures match")

    def _token(self, call: FunctionCall) -> _Typed:
        names = tuple(one.name if isinstance(one, ColumnName) else "" for one in call.arguments)
        columns = self._schema.partition_key
        if names != tuple(column.name for column in columns):
            key_names = ", ".join(column.name for column in columns)
            raise InvalidRequest(f"Invalid arguments of token(): it takes the partition key ({key_names})")
        indexes = [self._needs.index(column) for column in columns]

        def value(found: DecodedRow, _request: BoundRequest) -> bytes:
            key = composite_key([found.values[index] or b"" for index in indexes])
            return int(token_of(key)).to_bytes(8, signed=True)

        return _Typed(f"system.token({', '.join(names)})", SCALARS["bigint"], value)

    def _time(self, name: str, call: FunctionCall) -> _Typed:
        if len(call.arguments) != 1 or not isinstance(call.arguments[0], ColumnName):
            raise InvalidRequest(f"{name}() takes one column")
        column = self._named(call.arguments[0].name)
        if column.kind in (ColumnKind.PARTITION_KEY, ColumnKind.CLUSTERING):
            raise InvalidRequest(f"Cannot use selection function {name} on PRIMARY KEY part {column.name}")
        if is_multi_cell(column.type):
            raise InvalidRequest(f"Cannot use selection function {name} on non-frozen collection {column.name}")
        self._needs.with_cells = True
        index = self._needs.index(column)
        number, read = column.number, _write_time if name == "writetime" else _remaining_ttl

        def value(found: DecodedRow, request: BoundRequest) -> bytes | None:
            cell = found.cells.get(number)
            return None if cell is None or found.values[index] is None else read(cell, request.now_us // 1_000_000)

        return _Typed(f"{name}({column.name})", _TIMES[name], value)


def _fitting(candidates: Sequence[CqlFunction], call: FunctionCall, arguments: Sequence[_Typed]) -> CqlFunction:
    for function in candidates:
        if len(function.arguments) == len(arguments) and all(
            is_assignable(one.type, kind) for one, kind in zip(arguments, function.arguments)
        ):
            return function
    argument_types = ", ".join(str(one.type) for one in arguments)
    raise InvalidRequest(f"Invalid call to function {call.name}, none of its type signatures match ({argument_types})")


def _write_time(cell: Cell, _now_s: int) -> bytes:
    return cell.timestamp_us.to_bytes(8, signed=True)


def _remaining_ttl(cell: Cell, now_s: int) -> bytes | None:
    return (cell.at_s - now_s).to_bytes(4, signed=True) if cell.ttl_s else None


def _from_request(source: ValueSource) -> OutputValue:
    return lambda _found, request: _require_set(source(request))


def _no_value(_found: DecodedRow, _request: BoundRequest) -> bytes | None:
    return None


def _require_set(value: bytes | Unset | None) -> bytes | None:
    if isinstance(value, Unset):
        raise InvalidRequest("Invalid unset value in the select list")
    return value
