"""Stored bytes as text, using a table's schema if known; else columns are numbers and values are bytes."""

import uuid
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from ipaddress import ip_address
from typing import Any

from ebla.model.cql_types import CqlType, ListType, MapType, Scalar, ScalarType, SetType
from ebla.model.errors import InvalidRequest
from ebla.model.schema import Column, TableSchema
from ebla.model.token import composite_key, split_composite_key
from ebla.model.values import decode, encode, validation_error
from ebla.storage.codec.key_codec import decode_clustering

KEY_SEPARATOR = ","
_PARSERS: Mapping[Scalar, Callable[[str], Any]] = {
    Scalar.ASCII: str,
    Scalar.BOOLEAN: lambda text: {"true": True, "false": False}[text.lower()],
    Scalar.DECIMAL: Decimal,
    Scalar.DOUBLE: float,
    Scalar.FLOAT: float,
    Scalar.INET: ip_address,
    Scalar.TEXT: str,
    Scalar.TIMEUUID: uuid.UUID,
    Scalar.UUID: uuid.UUID,
}
"""Of the scalars that are not integers."""


def bytes_text(data: bytes) -> str:
    """As text if printable, else in hex."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return f"0x{data.hex()}"
    return text if text.isprintable() and text else f"0x{data.hex()}"


def value_text(kind: CqlType | None, data: bytes) -> str:
    if kind is None or kind == ScalarType(Scalar.BLOB) or validation_error(kind, data) is not None:
        return bytes_text(data) if kind is None else f"0x{data.hex()}"
    value = decode(kind, data)
    return "0x" if value is None else str(value)


class SchemaNames:
    """Names of columns and text of values for one table's rows."""

    def __init__(self, schema: TableSchema | None) -> None:
        self._schema = schema

    def columns_of(self, version: int) -> Sequence[int]:
        """The column numbers of a plain row's cells, in order, as far as they are known."""
        if self._schema is None or not 1 <= version <= len(self._schema.layouts):
            return ()
        return self._schema.layouts[version - 1]

    def column(self, number: int) -> str:
        column = self._column(number)
        return f"#{number}" if column is None else column.name

    def value(self, number: int, data: bytes) -> str:
        column = self._column(number)
        return value_text(None if column is None else column.type, data)

    def path(self, number: int, data: bytes) -> str:
        """Which element of a collection."""
        match self._type(number):
            case MapType(key=key):
                return value_text(key, data)
            case SetType(element=element):
                return value_text(element, data)
            case _:
                return f"0x{data.hex()}"

    def element(self, number: int, data: bytes) -> str:
        match self._type(number):
            case MapType(value=value):
                return value_text(value, data)
            case ListType(element=element):
                return value_text(element, data)
            case _:
                return bytes_text(data)

    def partition_key(self, data: bytes) -> str:
        if self._schema is None:
            return bytes_text(data)
        columns = self._schema.partition_key
        parts = [data] if len(columns) == 1 else split_composite_key(data)
        if len(parts) != len(columns):
            return bytes_text(data)
        return KEY_SEPARATOR.join(value_text(column.type, part) for column, part in zip(columns, parts))

    def clustering(self, data: bytes) -> str:
        if not data:
            return ""
        if self._schema is None:
            return f"0x{data.hex()}"
        columns = self._schema.clustering
        parts = decode_clustering(columns, data)
        return KEY_SEPARATOR.join(value_text(column.type, part) for column, part in zip(columns, parts))

    def parse_key(self, text: str) -> bytes:
        """The serialized partition key of a text, columns separated by commas; 0x… is always the serialized form
        itself.
        Raises `InvalidRequest` where it is not a key of this table."""
        if text.startswith("0x"):
            return _from_hex(text)
        if self._schema is None:
            return text.encode()
        columns = self._schema.partition_key
        parts = [text] if len(columns) == 1 else text.split(KEY_SEPARATOR)
        if len(parts) != len(columns):
            names = ", ".join(column.name for column in columns)
            raise InvalidRequest(f"the partition key of {self._schema.full_name} has {len(columns)} columns: {names}")
        return composite_key([_parse(column, part) for column, part in zip(columns, parts)])

    def _column(self, number: int) -> Column | None:
        return None if self._schema is None else self._schema.by_number.get(number)

    def _type(self, number: int) -> CqlType | None:
        column = self._column(number)
        return None if column is None else column.type


def _parse(column: Column, text: str) -> bytes:
    if not isinstance(column.type, ScalarType):
        raise InvalidRequest(f"{column.name} is a {column.type}: pass the whole key as 0x…")
    scalar = column.type.scalar
    try:
        return encode(column.type, _PARSERS.get(scalar, int)(text))
    except (ValueError, KeyError, InvalidOperation) as failure:
        raise InvalidRequest(f"{text!r} is not a {scalar.value} for {column.name}") from failure


def _from_hex(text: str) -> bytes:
    try:
        return bytes.fromhex(text[2:])
    except ValueError as failure:
        raise InvalidRequest(f"{text} is not a hexadecimal number: {failure}") from failure
