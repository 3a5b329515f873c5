"""Output of commands: rows as tables or JSON, and errors as one line each with exit status 1."""

import json
import sys
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from decimal import Decimal
from ipaddress import IPv4Address, IPv6Address
from typing import Any

import typer
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from ebla.model.cql_types import CqlType, MapType
from ebla.model.errors import EblaError, Outcome, leaf_errors
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


def print_json(value: object) -> None:
    sys.stdout.write(f"{json.dumps(value, ensure_ascii=False)}\n")


def print_records(names: Sequence[str], rows: Sequence[Sequence[object]], *, as_json: bool, missing: str = "") -> None:
    """A list of JSON objects, or a table."""
    if as_json:
        print_json([dict(zip(names, row)) for row in rows])
    else:
        print_table(names, rows, missing)


def print_rows(schema: TableSchema, page: CqlRows, *, as_json: bool) -> None:
    """One JSON object a line, or a table."""
    kinds = [schema.by_name[name].type for name in page.columns]
    rows = [[None if data is None else plain(kind, data) for kind, data in zip(kinds, row)] for row in page.rows]
    if as_json:
        for row in rows:
            print_json(dict(zip(page.columns, row)))
    elif rows:
        print_table(page.columns, rows, "null")


def print_table(names: Sequence[str], rows: Sequence[Sequence[object]], missing: str = "") -> None:
    """Nothing is truncated: long values wrap on a terminal, and lines are as long as needed elsewhere."""
    texts = [[missing if value is None else str(value).replace("\n", "\\n") for value in row] for row in rows]
    console = Console()
    if console.is_terminal:
        table = Table(*(Column(name, overflow="fold") for name in names))
        for row in texts:
            table.add_row(*(Text(value) for value in row))
        console.print(table)
        return
    widths = [max(len(row[place]) for row in [names, *texts]) for place in range(len(names))]
    for row in [list(names), *texts]:
        sys.stdout.write("  ".join(value.ljust(width) for value, width in zip(row, widths)).rstrip() + "\n")


@contextmanager
def reporting_errors() -> Iterator[None]:
    """Prints expected errors as one line each. Any other error is a defect and shows its traceback."""
    try:
        yield
    except (EblaError, OSError, BaseExceptionGroup) as error:
        words = [_words(each) for each in leaf_errors(error)]
        if None in words:
            raise
        for line in dict.fromkeys(words):
            sys.stderr.write(f"ebla: {line}\n")
        raise typer.Exit(1) from None


@contextmanager
def reporting_outcomes(*, as_json: bool, is_change: bool = True) -> Iterator[None]:
    """As `reporting_errors`, with the outcome of the operation. A read has none: it just failed."""
    with reporting_errors():
        try:
            yield
        except EblaError as error:
            if as_json:
                outcome = {"outcome": str(error.outcome)} if is_change else {}
                fields = {"error": type(error).__name__, "message": error.message, "advice": error.advice}
                sys.stdout.write(f"{json.dumps({**outcome, **fields}, ensure_ascii=False)}\n")
            else:
                outcome_text = f"{_OUTCOMES[error.outcome]}: " if is_change else ""
                sys.stderr.write(f"ebla: {outcome_text}{error}\n")
            raise typer.Exit(1) from None


_OUTCOMES = {Outcome.NOT_APPLIED: "not applied", Outcome.UNKNOWN: "unknown whether it was applied"}


def _words(error: BaseException) -> str | None:
    """None for a defect. A folder of another user, or a full or read-only disk, is the operator's to fix."""
    if isinstance(error, EblaError):
        return str(error)
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return None
