"""Aggregate functions. Pure."""

from collections.abc import Callable
from decimal import Context, Decimal, InvalidOperation, localcontext
from typing import Any, Protocol

from ebla.cql.parse.literals import rounded
from ebla.cql.plan.binder import NUMBERS, contains_duration
from ebla.model.byte_comparable import encode_comparable
from ebla.model.cql_types import SCALARS, CqlType, Scalar, ScalarType
from ebla.model.errors import InvalidRequest
from ebla.model.values import decode, encode

_BITS = {Scalar.TINYINT: 8, Scalar.SMALLINT: 16, Scalar.INT: 32, Scalar.BIGINT: 64}
_EXACT = Context(prec=1_000, Emin=-999_999_999, Emax=999_999_999)
"""Sums of decimals are exact up to this many digits, and rounded beyond."""


class Accumulator(Protocol):
    """The state of one aggregate in one request."""

    def add(self, value: bytes | None) -> None: ...

    def result(self) -> bytes | None: ...


class CountAccumulator:
    """Counts rows, or values that are not null."""

    def __init__(self, *, of_rows: bool) -> None:
        self._of_rows = of_rows
        self._count = 0

    def add(self, value: bytes | None) -> None:
        if self._of_rows or value is not None:
            self._count += 1

    def result(self) -> bytes:
        return self._count.to_bytes(8, signed=True)


class MinMaxAccumulator:
    def __init__(self, kind: CqlType, *, greatest: bool) -> None:
        self._kind = kind
        self._greatest = greatest
        self._value: bytes | None = None
        self._comparable = b""

    def add(self, value: bytes | None) -> None:
        if value is None:
            return
        comparable = encode_comparable(self._kind, value)
        if self._value is None or (
            (comparable > self._comparable) is self._greatest and comparable != self._comparable
        ):
            self._value, self._comparable = value, comparable

    def result(self) -> bytes | None:
        return self._value


class SumAccumulator:
    """Integers of fixed size wrap around, as in Cassandra."""

    def __init__(self, kind: ScalarType, *, average: bool) -> None:
        self._kind = kind
        self._average = average
        self._total: Any = Decimal(0) if kind.scalar is Scalar.DECIMAL else decode(kind, encode(kind, 0))
        self._count = 0

    def add(self, value: bytes | None) -> None:
        if value:  # neither null nor empty
            with localcontext(_EXACT):
                self._total += decode(self._kind, value)
            self._count += 1

    def result(self) -> bytes:
        found = self._average_value() if self._average else self._total
        return encode(self._kind, rounded(self._kind, self._wrap(found)))

    def _average_value(self) -> Any:
        if not self._count:
            return self._total
        if isinstance(self._total, int):
            whole = abs(self._total) // self._count
            return whole if self._total >= 0 else -whole
        if isinstance(self._total, Decimal):
            return _average(self._total, self._count)
        return self._total / self._count

    def _wrap(self, number: Any) -> Any:
        bits = _BITS.get(self._kind.scalar)
        if bits is None:
            return number
        return (number + (1 << bits - 1)) % (1 << bits) - (1 << bits - 1)


def _average(total: Decimal, count: int) -> Decimal:
    """With the scale of the sum, rounded half to even, as in Cassandra."""
    with localcontext(_EXACT):
        exponent = total.as_tuple().exponent
        assert isinstance(exponent, int), "a column holds no NaN"
        try:
            return (total / count).quantize(Decimal((0, (1,), exponent)))
        except InvalidOperation as error:
            raise InvalidRequest(f"the average of {count} values has over {_EXACT.prec} digits") from error


def aggregate_function(name: str, kind: CqlType | None) -> tuple[CqlType, Callable[[], Accumulator]]:
    """The type of the result, and a factory of accumulators. `kind` is the type of the argument; None: rows."""
    if name == "count":
        return SCALARS["bigint"], lambda: CountAccumulator(of_rows=kind is None)
    if kind is None:
        raise InvalidRequest(f"Invalid number of arguments in call to function {name}: 1 required but 0 provided")
    if name in ("min", "max"):
        if contains_duration(kind):
            raise InvalidRequest(f"Invalid call to function {name}: durations have no order")
        return kind, lambda: MinMaxAccumulator(kind, greatest=name == "max")
    if not isinstance(kind, ScalarType) or kind.scalar not in NUMBERS:
        raise InvalidRequest(f"Invalid call to function {name}: it takes numbers, not a {kind}")
    return kind, lambda: SumAccumulator(kind, average=name == "avg")
