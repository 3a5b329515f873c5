"""What a client is told of a write that was not acknowledged at its level. Pure.

INV-ROWS-8: a write of which a client is told that it was not applied is never shown to anybody.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from ebla.model.consistency import ConsistencyLevel
from ebla.model.errors import EblaError, WriteFailed, WriteTimeout
from ebla.request.write_acks import AckCounter, ReplicaWriteFailure

_MAYBE = "it may be there or appear later; repeat it with the same timestamp"
_FAILURES_TOLD_MAX = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteProgress:
    """How far the writes of one request are that are not acknowledged."""

    level: ConsistencyLevel
    writes: int
    """All of the request."""
    lacking: Sequence[AckCounter]
    """Of those that are not acknowledged, the newest try."""
    failures: Sequence[ReplicaWriteFailure]

    @property
    def least(self) -> AckCounter:
        """The one that lacks most: what is told of it holds for all."""
        return max(self.lacking, key=lambda acks: acks.required - acks.received)


def write_timeout(standing: WriteProgress, waited_ms: int) -> WriteTimeout:
    least = standing.least
    return WriteTimeout(
        f"{_counted(standing)} within {waited_ms} ms{_why(standing.failures)}",
        advice=_MAYBE,
        required=least.required,
        received=least.received,
    )


def write_failed(standing: WriteProgress) -> WriteFailed:
    least = standing.least
    advice = next((failure.advice for failure in standing.failures if failure.advice), "")
    return WriteFailed(
        f"{_counted(standing)}, and no more can{_why(standing.failures)}",
        advice=f"{_MAYBE}; {advice}" if advice else _MAYBE,
        required=least.required,
        received=least.received,
        failed=least.refused,
    )


def write_retry_failed(standing: WriteProgress, cause: EblaError) -> WriteFailed:
    """A first try was refused as stale, and a second one could not be started. What the cause says of its own outcome
    is true of the second try alone."""
    least = standing.least
    return WriteFailed(
        f"{_counted(standing)} before the topology changed, and it could not be sent again: {cause.message}",
        advice=_MAYBE,
        required=least.required,
        received=least.received,
        failed=least.refused,
    )


def _counted(standing: WriteProgress) -> str:
    least = standing.least
    counted = f"{least.received} of {least.required} replicas acknowledged"
    if standing.writes == 1:
        return f"{standing.level.name} write: {counted}"
    lacking = f"{len(standing.lacking)} of {standing.writes} writes were not acknowledged at {standing.level.name}"
    return f"{lacking}, of one only {counted}"


def _why(failures: Sequence[ReplicaWriteFailure]) -> str:
    if not failures:
        return ""
    told = "; ".join(
        f"shard {failure.target.shard} of host {failure.target.host}: {failure.error}, {failure.message}"
        for failure in failures[:_FAILURES_TOLD_MAX]
    )
    more = len(failures) - _FAILURES_TOLD_MAX
    return f" ({told}{f'; and {more} more' if more > 0 else ''})"
