"""Compiles the select list to output columns. Pure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import msgspec

from ebla.cql.parse.statements import SelectItem
from ebla.cql.parse.terms import ColumnName, FunctionCall, Term, TypeHint
from ebla.cql.plan.aggregates import Accumulator, aggregate_function
from ebla.cql.plan.binder import Binder, BoundRequest, TermReceiver, ValueSource, choose_overload
from ebla.cql.plan.functions import AGGREGATE_NAMES, CqlFunction
from ebla.cql.plan.row_decoder import DecodedRow
from ebla.model.cql_types import SCALARS, CqlType, is_assignable, is_multi_cell
from ebla.model.errors import InvalidRequest
from ebla.model.rows import Cell
from ebla.model.schema import Column, ColumnKind, TableSchema
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
    is_aggregate: bool = False
    """Its value depends on all rows."""


class AggregateColumn(msgspec.Struct, frozen=True):
    """An aggregate of the select list, alone or as an argument of a function."""

    value: OutputValue
    """What the accumulator adds of every row."""
    accumulator: Callable[[], Accumulator]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Typed:
    name: str
    type: CqlType
    value: OutputValue
    is_aggregate: bool = False


class SelectionBuilder:
    def __init__(self, schema: TableSchema, binder: Binder, needs: NeededColumns) -> None:
        self._schema = schema
        self._binder = binder
        self._needs = needs
        self.aggregates: list[AggregateColumn] = []
        """Their results follow the values of the columns in the row from which the outputs are computed."""

    def outputs(self, selectors: Sequence[SelectItem]) -> tuple[OutputColumn, ...]:
        if not selectors:
            return tuple(self._column(column, column.name) for column in self._schema.columns)
        return tuple(self._output(selector) for selector in selectors)

    def _output(self, selector: SelectItem) -> OutputColumn:
        item, alias = selector.item, selector.alias
        match item:
            case ColumnName(name=name):
                return self._column(self._named(name), alias or name)
            case _:
                typed = self._argument(item)
                return OutputColumn(
                    spec=self._spec(alias or typed.name, typed.type),
                    value=typed.value,
                    is_aggregate=typed.is_aggregate,
                )

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

    def _aggregate(self, bare: str, call: FunctionCall) -> _Typed:
        if not call.arguments:
            kind, accumulator = aggregate_function(bare, None)
            return self._result("count", kind, AggregateColumn(_no_value, accumulator))
        if len(call.arguments) > 1:
            raise InvalidRequest(f"Invalid number of arguments in call to function {bare}: 1 required")
        argument = self._argument(call.arguments[0])
        if argument.is_aggregate:
            raise InvalidRequest("aggregate functions cannot be used as arguments of aggregate functions")
        kind, accumulator = aggregate_function(bare, argument.type)
        return self._result(f"system.{bare}({argument.name})", kind, AggregateColumn(argument.value, accumulator))

    def _result(self, name: str, kind: CqlType, aggregate: AggregateColumn) -> _Typed:
        number, columns = len(self.aggregates), self._needs.columns
        self.aggregates.append(aggregate)
        # All needed columns are known only once the whole statement is compiled.
        return _Typed(
            name=name,
            type=kind,
            value=lambda found, _request: found.values[len(columns) + number],
            is_aggregate=True,
        )

    def _argument(self, argument: Term | ColumnName) -> _Typed:
        if isinstance(argument, ColumnName):
            column = self._named(argument.name)
            index = self._needs.index(column)
            return _Typed(name=column.name, type=column.type, value=lambda found, _request: found.values[index])
        if isinstance(argument, FunctionCall):
            return self._call(argument)
        if not isinstance(argument, TypeHint):
            raise InvalidRequest("the type of a value in the select list is not known; write it as (type) value")
        source = self._binder.source(argument.term, TermReceiver("[selection]", argument.type))
        return _Typed(name=f"({argument.type})", type=argument.type, value=_from_request(source))

    def _call(self, call: FunctionCall) -> _Typed:
        bare = call.name.removeprefix("system.")
        if bare in _TIMES:
            return self._time(bare, call)
        if bare in AGGREGATE_NAMES:
            return self._aggregate(bare, call)
        candidates = self._binder.overloads(call)
        arguments = [self._matched(candidates, call, at) for at in range(len(call.arguments))]
        function = _fitting(candidates, call, arguments)
        values = [one.value for one in arguments]

        def value(found: DecodedRow, request: BoundRequest) -> bytes | None:
            return function.work([one(found, request) for one in values], request)

        name = f"system.{bare}({', '.join(one.name for one in arguments)})"
        is_aggregate = any(one.is_aggregate for one in arguments)
        return _Typed(name=name, type=function.result, value=value, is_aggregate=is_aggregate)

    def _matched(self, candidates: Sequence[CqlFunction], call: FunctionCall, at: int) -> _Typed:
        """An argument; a constant or marker gets the type of the function's parameter."""
        argument = call.arguments[at]
        if isinstance(argument, ColumnName | FunctionCall | TypeHint):
            return self._argument(argument)
        tests: list[Callable[[CqlType], bool]] = [_any_type] * len(call.arguments)
        tests[at] = partial(self._binder.could_have_type, argument)
        function = candidates[0] if len(candidates) == 1 else choose_overload(call, candidates, tests, ())
        kind = function.arguments[at]
        source = self._binder.source(argument, TermReceiver(f"arg{at}({call.name})", kind))
        return _Typed(name="?", type=kind, value=_from_request(source))

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

        return _Typed(name=f"{name}({column.name})", type=_TIMES[name], value=value)


def _fitting(candidates: Sequence[CqlFunction], call: FunctionCall, arguments: Sequence[_Typed]) -> CqlFunction:
    if len(candidates) == 1:
        for number, (one, kind) in enumerate(zip(arguments, candidates[0].arguments)):
            if not is_assignable(one.type, kind):
                raise InvalidRequest(
                    f"Type error: {one.name} cannot be passed as argument {number} of function {call.name} of type "
                    f"{kind}"
                )
    tests = [partial(is_assignable, one.type) for one in arguments]
    return choose_overload(call, candidates, tests, [one.type for one in arguments])


def _any_type(_kind: CqlType) -> bool:
    return True


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
