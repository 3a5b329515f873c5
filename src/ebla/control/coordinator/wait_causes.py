"""What an operation waits for: one cause at a time, with the same text in every place that shows it."""

import enum
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from ebla.model.identity import RequestId
from ebla.observe.event_reporter import EventReporter
from ebla.wire.topology_messages import WaitCause


class WaitKind(enum.StrEnum):
    """The first words of each cause; docs/nodes.md has the way out."""

    BARRIER = "barrier of version"
    PIPELINE = "pipeline unavailable"
    STREAM = "streaming failed"
    QUEUED = "queued"
    NODES_DOWN = "nodes down and not excluded"
    OBJECTION = "cannot run"
    NO_REPLY = "no reply from"
    NO_MAJORITY = "no majority"
    LEASE = "waiting for the lease of"
    UNFINISHED = "unfinished operation"
    FAILED = "coordinator failed"
    UNSUPPORTED = "not supported in this release"
    TARGET_ALIVE = "node to remove or replace is alive"
    TARGET_DOWN = "node is down"
    EXCLUDED_GAINS = "excluded node would gain ranges"
    TRANSFER = "leadership transfer"
    GLOBAL = "global request"


Subject = RequestId | None
"""A request; None: the coordinator as a whole."""


@dataclass(frozen=True, slots=True)
class _Known:
    cause: str
    since_ms: int
    countdown: str = ""


class WaitCauses:
    """The current cause of each subject, since when, and one log line per change."""

    def __init__(self, boot_ms: Callable[[], int], report: EventReporter) -> None:
        self._boot_ms = boot_ms
        self._report = report
        self._causes: dict[Subject, _Known] = {}

    def set(self, subject: Subject, kind: WaitKind, text: str = "", *, countdown: str = "") -> None:
        """`countdown` is shown and does not make it another cause."""
        cause = f"{kind}{text}"
        known = self._causes.get(subject)
        if known is None or known.cause != cause:
            self._report("topology.waits", {"request": str(subject or ""), "reason": cause})
            known = _Known(cause, self._boot_ms())
        self._causes[subject] = replace(known, countdown=countdown)

    def clear(self, subject: Subject) -> None:
        """It makes progress, or has ended."""
        self._causes.pop(subject, None)

    def keep_only(self, subjects: Iterable[Subject]) -> None:
        kept = [None, *subjects]
        for subject in [one for one in self._causes if one not in kept]:
            self.clear(subject)

    def of(self, subject: Subject) -> WaitCause | None:
        found = self._causes.get(subject)
        return None if found is None else WaitCause(found.cause + found.countdown, self._boot_ms() - found.since_ms)
