"""Rows of users as tables and as JSON."""

import uuid
from decimal import Decimal
from ipaddress import IPv4Address, IPv6Address
from typing import Any

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from ebla.cli.output import cell_texts, print_json, print_table
from ebla.model.cql_types import CqlType, MapType
from ebla.model.schema import TableSchema
from ebla.model.values import Duration, decode
from ebla.source.cql_client import CqlRows


def plain(kind: CqlType, data: bytes) -> Any:
    """A value as JSON can hold it and people can read it."""
    value = decode(kind, data)
    return _plain(dict(value) if isinstance(kind, MapType) else value)


def _plain(value: Any) -> Any:
    match value:
        case bytes():
            return f"0x{value.hex()}"
        case uuid.UUID() | Decimal() | IPv4Address() | IPv6Address():
            return str(value)
        case Duration():
            return f"{value.months}mo{value.days}d{value.nanoseconds}ns"
        case dict():
            return {str(_plain(key)): _plain(inner) for key, inner in value.items()}
        case list() | tuple():
            return [_plain(inner) for inner in value]
        case _:
            return value


def print_rows(schema: TableSchema, page: CqlRows, *, as_json: bool) -> None:
    """One JSON object a line, or a table. Values may have any length: nothing is truncated or left out, and long ones
    wrap in a terminal."""
    kinds = [schema.by_name[name].type for name in page.columns]
    rows = [[None if data is None else plain(kind, data) for kind, data in zip(kinds, row)] for row in page.rows]
    console = Console()
    if as_json:
        for row in rows:
            print_json(dict(zip(page.columns, row)))
    elif rows and console.is_terminal:
        table = Table(*(Column(name, overflow="fold") for name in page.columns))
        for texts in cell_texts(rows, "null"):
            table.add_row(*(Text(value) for value in texts))
        console.print(table)
    elif rows:
        print_table(page.columns, rows, "null")
