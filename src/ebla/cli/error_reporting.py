"""How a command reports errors: one line for each, and exit status 1."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from ebla.model.errors import EblaError, Outcome, leaf_errors


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
