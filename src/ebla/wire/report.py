"""Where the wire tells people what it saw."""

from collections.abc import Callable, Mapping

Report = Callable[[str, Mapping[str, object]], None]
"""The name of an event and what belongs to it."""


def unreported(_event: str, _details: Mapping[str, object]) -> None:
    """For those who only want the errors their calls raise."""
