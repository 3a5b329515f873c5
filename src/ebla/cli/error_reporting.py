"""How a command tells what went wrong: one line per error, and the exit status 1."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from ebla.model.errors import EblaError, Outcome, leaf_errors


@contextmanager
def reporting_errors() -> Iterator[None]:
    """Errors that were foreseen have words for people; any other is a defect and shows its trace."""
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
    """Errors with what became of the operation; of a read there is nothing to say but that it failed."""
    try:
        yield
    except EblaError as error:
        if as_json:
            outcome = {"outcome": str(error.outcome)} if is_change else {}
            told = {"error": type(error).__name__, "message": error.message, "advice": error.advice}
            sys.stdout.write(f"{json.dumps({**outcome, **told}, ensure_ascii=False)}\n")
        else:
            became = f"{_BECAME[error.outcome]}: " if is_change else ""
            sys.stderr.write(f"ebla: {became}{error}\n")
        raise typer.Exit(1) from None


_BECAME = {Outcome.NOT_APPLIED: "not applied", Outcome.UNKNOWN: "unknown whether it was applied"}


def _words(error: BaseException) -> str | None:
    """Another user's folder, or a disk that is full or read-only, is the operator's to mend as well."""
    if isinstance(error, EblaError):
        return str(error)
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return None
