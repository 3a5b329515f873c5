"""Where the wire tells people what it saw."""

from collections.abc import Callable, Mapping

from ebla.observe.events import Severity
from ebla.observe.observer import Observer

Report = Callable[[str, Mapping[str, object]], None]
"""The name of an event and what belongs to it."""

_SEVERITIES = {
    "wire.peer_connected": Severity.NOTE,
    "wire.verb_broke": Severity.ERROR,
}


def report_to(observer: Observer) -> Report:
    """Events of the wire as the process's own. The story they belong to is the host's, where one is known."""

    def report(event: str, details: Mapping[str, object]) -> None:
        fields = {f"{name}_" if name == "severity" else name: value for name, value in details.items()}
        subject = str(details.get("host") or details.get("peer") or "")
        observer.emit(event, subject, severity=_SEVERITIES.get(event, Severity.WARNING), **fields)

    return report


def unreported(_event: str, _details: Mapping[str, object]) -> None:
    """For those who only want the errors their calls raise."""
