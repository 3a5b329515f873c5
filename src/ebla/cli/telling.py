"""How a command tells what went wrong: one line per error, and the exit status 1."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import typer

from ebla.model.error_groups import leaves
from ebla.model.errors import EblaError


@contextmanager
def errors_told() -> Iterator[None]:
    """Errors that were foreseen have words for people; any other is a defect and shows its trace."""
    try:
        yield
    except EblaError as error:
        _tell(error)
    except BaseExceptionGroup as group:
        errors = list(leaves(group))
        if not all(isinstance(error, EblaError) for error in errors):
            raise
        _tell(*errors)


def _tell(*errors: BaseException) -> NoReturn:
    for error in errors:
        sys.stderr.write(f"ebla: {error}\n")
    raise typer.Exit(1) from None
