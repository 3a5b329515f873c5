"""Compiles terms to value sources: functions from the values of a request to a value.

Constants are computed when a statement is prepared, and cost nothing per request.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal, DecimalException
from functools import partial
from typing import Any

import msgspec

from ebla.cql.parse.literals import literal_value, rounded
from ebla.cql.parse.terms import (
    Arithmetic,
    BindMarker,
    ColumnName,
    FunctionCall,
    ListLiteral,
    NullLiteral,
    SetOrMapLiteral,
    Term,
    TupleLiteral,
    TypeHint,
)
from ebla.cql.plan.functions import CqlFunction, overloads_of, token_function
from ebla.model.byte_comparable import canonical, encode_comparable, has_other_forms
from ebla.model.cql_types import (
    EMPTIABLE,
    FIXED_BYTES,
    SCALARS,
    CqlType,
    ListType,
    MapType,
    Scalar,
    ScalarType,
    SetType,
    TupleType,
    contains,
    inner_types,
    is_assignable,
)
from ebla.model.errors import InvalidRequest, TooLarge
from ebla.model.schema import TableSchema
from ebla.model.values import (
    decode,
    decode_or_none,
    encode,
    join_elements,
    join_fields,
    split_elements,
    split_fields,
    validation_error,
)
from ebla.options import DEFAULT_LIMITS
from ebla.wire.cql.messages import UNSET, BoundValue, ColumnSpec, QueryParameters, Unset

ARITHMETIC_DIGITS_MAX = 4_000
ARITHMETIC_BITS_MAX = math.ceil(ARITHMETIC_DIGITS_MAX * math.log2(10))
NUMBERS = frozenset(map(Scalar, ("tinyint", "smallint", "int", "bigint", "varint", "float", "double", "decimal")))


class BoundRequest(msgspec.Struct, gc=False):
    """The values of one request, in the order of the statement's markers, and its time."""

    values: Sequence[BoundValue]
    now_us: int
    random_bytes: Callable[[int], bytes]


ValueSource = Callable[[BoundRequest], BoundValue]


class TermReceiver(msgspec.Struct, frozen=True):
    """What receives the value of a term: a column, an element of a collection, LIMIT…"""

    name: str
    type: CqlType


@dataclass(slots=True, kw_only=True)
class Binder:
    """Compiles the terms of one statement, and records the receivers of its markers."""

    keyspace: str
    table: str
    markers: tuple[BindMarker, ...]
    elements_max: int = DEFAULT_LIMITS.cql_elements_max
    """Of a collection, or of the list of an IN."""
    partition_key: tuple[CqlType, ...] = ()
    """The types of the table's partition key, which are the arguments of token()."""
    _receivers: dict[int, TermReceiver] = field(default_factory=dict)

    def variables(self, *, all_known: bool = True) -> tuple[ColumnSpec, ...]:
        found = []
        for marker in self.markers:
            receiver = self._receivers.get(marker.number)
            if receiver is None and not all_known:
                continue
            if receiver is None:
                raise InvalidRequest(f"bind marker {marker.number + 1} has no known type")
            found.append(
                ColumnSpec(
                    keyspace=self.keyspace, table=self.table, name=marker.name or receiver.name, type=receiver.type
                )
            )
        return tuple(found)

    # ---- compiling

    def optional(self, term: Term | None, name: str, kind: CqlType) -> ValueSource | None:
        return None if term is None else self.source(term, TermReceiver(name, kind))

    def source(self, term: Term, receiver: TermReceiver) -> ValueSource:
        match term:
            case BindMarker():
                return self._marker(term, receiver)
            case NullLiteral():
                return _Constant(None)
            case ListLiteral() | SetOrMapLiteral() | TupleLiteral():
                return self._collection(term, receiver)
            case TypeHint(type=hinted, term=inner):
                if not is_assignable(hinted, receiver.type):
                    raise InvalidRequest(
                        f'Type error: cannot assign a value of type {hinted} to "{receiver.name}" of type '
                        f"{receiver.type}"
                    )
                return self.source(inner, TermReceiver(receiver.name, hinted))
            case FunctionCall():
                return self._call(term, receiver)
            case Arithmetic():
                return self._arithmetic(term, receiver)
            case _:
                return _Constant(literal_value(receiver.type, term, receiver.name))

    def _marker(self, marker: BindMarker, receiver: TermReceiver) -> ValueSource:
        self._receivers[marker.number] = receiver
        number, check, name, kind = marker.number, self._invalid_value_test(receiver.type), receiver.name, receiver.type

        def bound(request: BoundRequest) -> BoundValue:
            value = request.values[number]
            if type(value) is bytes and check(value):
                raise InvalidRequest(f'Invalid value for "{name}" of type {kind}: {validation_error(kind, value)}')
            return value

        if not has_other_forms(kind):
            return bound

        def bound_canonical(request: BoundRequest) -> BoundValue:
            value = bound(request)
            return canonical(kind, value) if type(value) is bytes else value

        return bound_canonical

    def _invalid_value_test(self, kind: CqlType) -> Callable[[bytes], bool]:
        test, elements_max = invalid_value_test(kind), self.elements_max
        if isinstance(kind, ScalarType):
            return test

        def with_elements(data: bytes) -> bool:
            if len(data) > 4 * elements_max:  # an element has at least the four bytes of its length
                self.check_elements(element_count(kind, data, elements_max))
            return test(data)

        return with_elements

    def check_elements(self, count: int) -> None:
        if count > self.elements_max:
            raise TooLarge(f"{count} elements are over limits.cql_elements_max ({self.elements_max})")

    def _collection(self, term: ListLiteral | SetOrMapLiteral | TupleLiteral, receiver: TermReceiver) -> ValueSource:
        kind, name = receiver.type, receiver.name
        match term, kind:
            case ListLiteral(elements=elements), ListType(element=element):
                return self._joined(elements, [TermReceiver(f"value({name})", element)] * len(elements), _join_list)
            case SetOrMapLiteral(pairs=pairs), SetType(element=element) if all(right is None for _, right in pairs):
                keys = [left for left, _ in pairs]
                return self._joined(
                    keys, [TermReceiver(f"value({name})", element)] * len(keys), partial(_join_canonical, kind, 1)
                )
            case SetOrMapLiteral(pairs=pairs), MapType(key=key, value=value):
                terms: list[Term] = []
                for left, right in pairs:
                    if right is None:
                        raise InvalidRequest(f"Invalid set literal for {name} of type {kind}")
                    terms += (left, right)
                receivers = [TermReceiver(f"key({name})", key), TermReceiver(f"value({name})", value)] * len(pairs)
                return self._joined(terms, receivers, partial(_join_canonical, kind, 2))
            case TupleLiteral(elements=elements), TupleType(elements=types):
                if len(elements) > len(types):
                    raise InvalidRequest(
                        f"Invalid tuple literal for {name}: too many elements. Type {kind} expects {len(types)} but "
                        f"got {len(elements)}"
                    )
                receivers = [TermReceiver(f"{name}[{number}]", one) for number, one in enumerate(types)]
                return self._joined(elements, receivers[: len(elements)], join_fields, nulls=True)
            case TupleLiteral(elements=(only,)), _:
                return self.source(only, receiver)
            case _:
                word = {ListLiteral: "list", SetOrMapLiteral: "set or map", TupleLiteral: "tuple"}[type(term)]
                raise InvalidRequest(f"Invalid {word} literal for {name} of type {kind}")

    def _joined(
        self,
        terms: Sequence[Term],
        receivers: Sequence[TermReceiver],
        join: Callable[[list[bytes | None]], bytes],
        *,
        nulls: bool = False,
    ) -> ValueSource:
        self.check_elements(len(terms))
        sources = [self.source(term, receiver) for term, receiver in zip(terms, receivers)]
        name = receivers[0].name if receivers else ""

        def bound(request: BoundRequest) -> BoundValue:
            parts: list[bytes | None] = []
            for source in sources:
                value = source(request)
                if isinstance(value, Unset):
                    raise InvalidRequest(f"unset value is not supported inside {name}")
                if value is None and not nulls:
                    raise InvalidRequest("null is not supported inside collections")
                parts.append(value)
            return join(parts)

        return _evaluate_if_constant(bound, all(is_constant(source) for source in sources))

    # ---- functions

    def _call(self, call: FunctionCall, receiver: TermReceiver) -> ValueSource:
        known = self.overloads(call)
        fitting = [one for one in known if is_assignable(one.result, receiver.type)]
        if not fitting:
            raise InvalidRequest(
                f"Type error: cannot assign result of function {call.name} (type {known[0].result}) to "
                f'"{receiver.name}" of type {receiver.type}'
            )
        arguments = [self._argument(one) for one in call.arguments]
        function = choose_overload(
            call,
            fitting,
            [partial(self.could_have_type, one) for one in arguments],
            [self._known_type(one) for one in arguments],
        )
        return self._applied(function, arguments)

    def overloads(self, call: FunctionCall) -> tuple[CqlFunction, ...]:
        """Those with as many arguments. Raises `InvalidRequest` if there are none."""
        if call.name.removeprefix("system.") == "token" and self.partition_key:
            known: tuple[CqlFunction, ...] = (token_function(self.partition_key),)
        else:
            known = overloads_of(call.name)
        found = tuple(one for one in known if len(one.arguments) == len(call.arguments))
        if not found:
            raise InvalidRequest(
                f"Invalid number of arguments in call to function {call.name}: {len(known[0].arguments)} required but "
                f"{len(call.arguments)} provided"
            )
        return found

    def _known_type(self, term: Term) -> CqlType | None:
        """The type of a term that has one whatever receives it."""
        if isinstance(term, TypeHint):
            return term.type
        if isinstance(term, FunctionCall):
            results = {one.result for one in self.overloads(term)}
            return results.pop() if len(results) == 1 else None
        return None

    def _argument(self, argument: Term | ColumnName) -> Term:
        if isinstance(argument, ColumnName):
            raise InvalidRequest(f"a column ({argument.name}) is not allowed here, only values are")
        return argument

    def _applied(self, function: CqlFunction, arguments: Sequence[Term]) -> ValueSource:
        sources = [
            self.source(one, TermReceiver(f"arg{number}({function.name})", kind))
            for number, (one, kind) in enumerate(zip(arguments, function.arguments))
        ]

        def bound(request: BoundRequest) -> BoundValue:
            return function.work([_require_set(source(request)) for source in sources], request)

        return _evaluate_if_constant(bound, function.is_pure and all(is_constant(source) for source in sources))

    def could_have_type(self, term: Term, kind: CqlType) -> bool:
        """Whether a term can be a value of this type, as far as is known before binding."""
        match term:
            case BindMarker() | NullLiteral():
                return True
            case TypeHint(type=hinted):
                return is_assignable(hinted, kind)
            case FunctionCall():
                return any(is_assignable(one.result, kind) for one in self.overloads(term))
            case _:
                try:
                    Binder(keyspace="", table="", markers=()).source(term, TermReceiver("", kind))
                except InvalidRequest:
                    return False
                return True

    # ---- arithmetic

    def _arithmetic(self, term: Arithmetic, receiver: TermReceiver) -> ValueSource:
        kind = receiver.type
        if kind in (SCALARS["timestamp"], SCALARS["date"]):
            raise InvalidRequest(f"arithmetic on values of type {kind}: not supported in this release")
        if not isinstance(kind, ScalarType) or kind.scalar not in NUMBERS:
            raise InvalidRequest(f"the '{term.rest[0][0]}' operation is not supported for values of type {kind}")
        # Not the receiver's own name: drivers would take an operand for the column, and compute a token from it.
        first = self.source(term.first, TermReceiver(f"arg0({_OPERATIONS[term.rest[0][0]]})", kind))
        rest = [
            (operator, self.source(operand, TermReceiver(f"arg1({_OPERATIONS[operator]})", kind)))
            for operator, operand in term.rest
        ]
        whole = kind.scalar not in (Scalar.FLOAT, Scalar.DOUBLE, Scalar.DECIMAL)

        def bound(request: BoundRequest) -> BoundValue:
            found = _check_digits(decode_or_none(kind, _require_set(first(request))))
            for operator, source in rest:
                other = _check_digits(decode_or_none(kind, _require_set(source(request))))
                if found is None or other is None:
                    return None
                try:
                    found = _calculate(operator, found, other, whole)
                except (DecimalException, OverflowError, ValueError) as error:
                    raise InvalidRequest(f"the '{operator}' operation has no {kind} as its result") from error
                # Rounded and of the size of its type after each operation, as if each were a statement of its own.
                found = decode(kind, encode(kind, rounded(kind, _check_digits(found))))
            return None if found is None else encode(kind, found)

        return _evaluate_if_constant(bound, is_constant(first) and all(is_constant(source) for _, source in rest))


def table_binder(schema: TableSchema, markers: tuple[BindMarker, ...], elements_max: int) -> Binder:
    return Binder(
        keyspace=schema.keyspace,
        table=schema.name,
        markers=markers,
        elements_max=elements_max,
        partition_key=tuple(column.type for column in schema.partition_key),
    )


def choose_overload(
    call: FunctionCall,
    among: Sequence[CqlFunction],
    tests: Sequence[Callable[[CqlType], bool]],
    types: Sequence[CqlType | None],
) -> CqlFunction:
    """The overload that accepts these arguments: for each the test whether it can have a type, and its type if that is
    known. An exact match has precedence over compatible types; a marker must have one possible type."""
    for function in among:
        if function.arguments == tuple(types):
            return function
    found = [one for one in among if all(test(kind) for test, kind in zip(tests, one.arguments, strict=True))]
    is_marked = any(isinstance(one, BindMarker) for one in call.arguments)
    if found and (len(found) == 1 or not is_marked):
        return found[0]
    signatures = "; ".join(f"({', '.join(map(str, one.arguments))})" for one in found or among)
    if found:
        raise InvalidRequest(
            f"Ambiguous call to function {call.name} (can be matched by following signatures: {signatures}): use type "
            "casts to disambiguate"
        )
    raise InvalidRequest(
        f"Invalid call to function {call.name}, none of its type signatures match (known: {signatures})"
    )


_OPERATIONS = {"+": "_add", "-": "_subtract", "*": "_multiply", "/": "_divide", "%": "_modulo"}


def _check_digits(number: Any) -> Any:
    """Multiplying and writing long numbers takes quadratic time."""
    if isinstance(number, int) and number.bit_length() > ARITHMETIC_BITS_MAX:
        raise TooLarge(f"a number of more than {ARITHMETIC_DIGITS_MAX} digits in an operation")
    return number


def _calculate(operator: str, left: Any, right: Any, whole: bool) -> Any:
    match operator:
        case "+":
            return left + right
        case "-":
            return left - right
        case "*":
            return left * right
    if not right:
        raise InvalidRequest("division by zero")
    if not whole:
        if operator == "/":
            return left / right
        return left % right if isinstance(left, Decimal) else math.fmod(left, right)
    quotient = abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)
    return quotient if operator == "/" else left - right * quotient


# ---- sources


class _Constant:
    """A `ValueSource` with the same value for every request."""

    __slots__ = ("value",)

    def __init__(self, value: bytes | None) -> None:
        self.value = value

    def __call__(self, _request: BoundRequest) -> bytes | None:
        return self.value


def is_constant(source: ValueSource) -> bool:
    return isinstance(source, _Constant)


def _no_bytes(_count: int) -> bytes:
    raise AssertionError("a constant uses no randomness")


def _evaluate_if_constant(source: ValueSource, constant: bool) -> ValueSource:
    """Evaluates a constant source now."""
    return _Constant(_require_set(source(BoundRequest((), 0, _no_bytes)))) if constant else source


def _require_set(value: BoundValue) -> bytes | None:
    if isinstance(value, Unset):
        raise InvalidRequest("Invalid unset value for an argument")
    return value


def _join_list(parts: list[bytes | None]) -> bytes:
    return join_elements(parts, len(parts))


def _join_canonical(kind: CqlType, per_item: int, parts: list[bytes | None]) -> bytes:
    return canonical(kind, join_elements(parts, len(parts) // per_item))


# ---- values of requests


def invalid_value_test(kind: CqlType) -> Callable[[bytes], bool]:
    """A function that is true if bytes are *not* a value of the type; as fast as the type allows."""
    if isinstance(kind, ScalarType):
        if kind.scalar is Scalar.BLOB:
            return _never
        size, may_be_empty = FIXED_BYTES.get(kind.scalar), kind.scalar in EMPTIABLE
        if size is not None and kind.scalar not in (Scalar.TIME, Scalar.TIMEUUID):
            return lambda data: len(data) != size and (bool(data) or not may_be_empty)
        if kind.scalar is Scalar.TEXT:
            return _is_no_text
    return lambda data: validation_error(kind, data) is not None


def _never(_data: bytes) -> bool:
    return False


def _is_no_text(data: bytes) -> bool:
    if data.isascii():
        return False
    try:
        data.decode()
    except UnicodeDecodeError:
        return True
    return False


def element_count(kind: CqlType, data: bytes, most: int) -> int:
    """The elements of a collection at any depth, or a number above `most`. Bytes that do not fit the type have none."""
    if isinstance(kind, ScalarType):
        return 0
    inner = inner_types(kind)
    count = 0 if isinstance(kind, TupleType) else int.from_bytes(data[:4], signed=True)
    if count > most or all(isinstance(one, ScalarType) for one in inner):
        return count
    try:
        parts = split_fields(data) if isinstance(kind, TupleType) else split_elements(data, len(inner))
    except ValueError:
        return 0
    return count + sum(element_count(one, part or b"", most) for one, part in zip(itertools.cycle(inner), parts))


def values_in_marker_order(
    parameters: QueryParameters, markers: Sequence[BindMarker], variables: Sequence[ColumnSpec]
) -> Sequence[BoundValue]:
    """The values in the order of the markers, whether sent by position or by name."""
    if parameters.names is None:
        if len(parameters.values) != len(markers):
            raise InvalidRequest(
                f"Invalid amount of bind variables: there were {len(markers)} markers(?) in CQL but "
                f"{len(parameters.values)} bound variables"
            )
        return parameters.values
    by_name = dict(zip(parameters.names, parameters.values))
    found: list[BoundValue] = []
    for marker, variable in zip(markers, variables):
        name = marker.name or variable.name
        found.append(by_name.get(name, by_name.get(name.lower(), UNSET)))
    return found


def contains_duration(kind: CqlType) -> bool:
    """Values with durations have no order: a month may be longer or shorter than thirty days."""
    return contains(kind, Scalar.DURATION)


def comparable(kind: CqlType, value: bytes) -> bytes:
    """Bytes that are equal for equal values, and sort like them if they have an order."""
    return value if contains_duration(kind) else encode_comparable(kind, value)
