"""How a command tells what went wrong: one line per error, and the exit status 1."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from ebla.model.error_groups import leaves
from ebla.model.errors import EblaError


@contextmanager
def errors_told() -> Iterator[None]:
    """Errors that were foreseen have words for people; any other is a defect and shows its trace."""
    try:
        yield
    except (EblaError, OSError, BaseExceptionGroup) as error:
        words = [_words(each) for each in leaves(error)]
        if None in words:
            raise
        for line in dict.fromkeys(words):
            sys.stderr.write(f"ebla: {line}\n")
        raise typer.Exit(1) from None


def _words(error: BaseException) -> str | None:
    """Another user's folder, or a disk that is full or read-only, is the operator's to mend as well."""
    if isinstance(error, EblaError):
        return str(error)
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return None
