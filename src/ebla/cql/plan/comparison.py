"""Values as they are compared: by their type's order, or only for being the same where there is none. Pure."""

from ebla.model.byte_comparable import encode_comparable
from ebla.model.cql_types import CqlType, ListType, MapType, Scalar, ScalarType, SetType, TupleType


def contains_duration(kind: CqlType) -> bool:
    """Such values have no order: a month is sometimes longer than thirty days."""
    match kind:
        case ScalarType(scalar=scalar):
            return scalar is Scalar.DURATION
        case ListType(element=element) | SetType(element=element):
            return contains_duration(element)
        case MapType(key=key, value=value):
            return contains_duration(key) or contains_duration(value)
        case TupleType(elements=elements):
            return any(map(contains_duration, elements))


def comparable(kind: CqlType, value: bytes) -> bytes:
    """Equal for equal values, and in their order where they have one."""
    return value if contains_duration(kind) else encode_comparable(kind, value)
