"""Errors that come in groups, as a task group raises them."""

from collections.abc import Iterator


def leaf_errors(error: BaseException) -> Iterator[BaseException]:
    """The single errors in a group, however deep; an error that is none, itself."""
    if not isinstance(error, BaseExceptionGroup):
        yield error
        return
    for each in error.exceptions:
        yield from leaf_errors(each)
