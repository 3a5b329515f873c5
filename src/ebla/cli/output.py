"""Output of commands: tables or JSON, and errors as one line each with exit status 1."""

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import typer
from rich.console import Console
from rich.text import Text

from ebla.cli.columns import TextColumn, fitted, joined
from ebla.model.errors import EblaError, Outcome, leaf_errors


def print_json(value: object) -> None:
    sys.stdout.write(f"{json.dumps(value, ensure_ascii=False)}\n")


def print_records(
    names: Sequence[str],
    rows: Sequence[Sequence[object]],
    *,
    as_json: bool,
    missing: str = "",
    less_important: Sequence[str] = (),
) -> None:
    """A list of JSON objects, or a table."""
    if as_json:
        print_json([dict(zip(names, row)) for row in rows])
    else:
        print_table(names, rows, missing, less_important=less_important)


def print_table(
    names: Sequence[str],
    rows: Sequence[Sequence[object]],
    missing: str = "",
    *,
    less_important: Sequence[str] = (),
) -> None:
    """The last column is text, which wraps in a terminal. Where a terminal has no room for the others, those of
    `less_important` are left out, in this order. Elsewhere lines are as long as needed."""
    texts = cell_texts(rows, missing)
    columns = [
        TextColumn(name=name, cells=[row[place] for row in texts], drop_rank=_rank(name, less_important))
        for place, name in enumerate(names)
    ]
    console = Console()
    head, *lines = fitted(columns, console.width) if console.is_terminal else joined(columns)
    console.print(Text(head, style="bold"), soft_wrap=True)
    for line in lines:
        console.print(Text(line), soft_wrap=True)


def cell_texts(rows: Sequence[Sequence[object]], missing: str) -> list[list[str]]:
    return [[missing if value is None else str(value).replace("\n", "\\n") for value in row] for row in rows]


def _rank(name: str, less_important: Sequence[str]) -> int:
    return less_important.index(name) + 1 if name in less_important else 0


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
