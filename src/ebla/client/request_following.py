"""Follows a topology request through the reports of any nodes, until it ends. Pure: the caller fetches and waits."""

from dataclasses import dataclass

import msgspec

from ebla.client.topology_view import (
    RequestResult,
    bytes_text,
    cause_text,
    open_report,
    progress_text,
    request_by_id,
    row_of,
    seconds_text,
)
from ebla.model.errors import NotFound
from ebla.model.identity import RequestId
from ebla.topology.snapshot import Node, NodeRequest
from ebla.topology.states import NodeState, RequestOutcome
from ebla.wire.topology_messages import StreamProgress, TopologyReport, TopologyRequest

UNLISTED_S = 10.0
"""For how long no report may list a request that exists."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowedState:
    """One look at a request. `state` and `cause` change seldom, the figures all the time."""

    label: str
    state: str
    cause: str = ""
    """What it waits for, without its age."""
    cause_age: str = ""
    progress: StreamProgress | None = None
    bytes_per_s: float | None = None

    @property
    def left_s(self) -> float | None:
        if not self.bytes_per_s or self.progress is None:
            return None
        return max(0, self.progress.bytes_total - self.progress.bytes_moved) / self.bytes_per_s

    @property
    def text(self) -> str:
        parts = [self.state]
        if self.cause:
            parts.append(f"{self.cause}{f' ({self.cause_age})' if self.cause_age else ''}")
        if self.progress is not None and (figures := progress_text(self.progress)):
            speed = f", {bytes_text(int(self.bytes_per_s))}/s" if self.bytes_per_s else ""
            parts.append(f"{figures}{speed}" if self.left_s is None else f"{figures}{speed}, {self.left_s:.0f} s left")
        return f"{self.label}: {'; '.join(parts)}"


class RequestFollower:
    """Feed it reports; `ended` is set once the request has ended. Reports of a node that lags behind an earlier report
    are ignored: the next report may come from another node than the last one."""

    def __init__(self, request: RequestId, label: str, *, until_settled: bool = False) -> None:
        """`until_settled`: wait also until the node's row is `left` or `normal`, which is the end of a rollback."""
        self.request = request
        self.label = label
        self.ended: TopologyRequest | None = None
        self._until_settled = until_settled
        self._version = 0
        self._outcome = RequestOutcome.PENDING
        self._unlisted_since_s: float | None = None
        self._progress: StreamProgress | None = None
        self._streams_since: tuple[float, int] | None = None
        """When the first bytes were seen, and how many: the rate is measured from there."""

    def check(self, report: TopologyReport, now_s: float) -> FollowedState:
        if report.version < self._version:
            return FollowedState(label=self.label, state=str(self._outcome), cause="the node that answers lags behind")
        self._version = report.version
        request = request_by_id(report, self.request)
        if request is None:
            return self._check_unlisted(now_s)
        self._unlisted_since_s = None
        self._outcome = request.outcome
        if request.is_open or open_report(report, self.request) is not None:  # or its last barrier has not passed
            return self._check_open(report, request, now_s)
        failed = isinstance(request, NodeRequest) and request.outcome is RequestOutcome.FAILED
        if self._until_settled and failed and not _is_settled(_own_row(report, request)):
            return FollowedState(label=self.label, state=f"rolls back: {request.error}", cause=_cause(report))
        self.ended = request
        return FollowedState(label=self.label, state=str(request.outcome))

    def _check_unlisted(self, now_s: float) -> FollowedState:
        """A new request does not raise the version, so a node that lags behind a little does not list it yet."""
        since_s = self._unlisted_since_s = now_s if self._unlisted_since_s is None else self._unlisted_since_s
        if now_s - since_s >= UNLISTED_S:
            raise NotFound(f"request {self.request} is not listed any more", advice="see `ebla topology`")
        return FollowedState(label=self.label, state=str(self._outcome), cause="the node that answers lags behind")

    def conclude(self, request: TopologyRequest) -> None:
        """It is done, although no report has shown its end."""
        self._outcome = RequestOutcome.DONE
        self.ended = msgspec.structs.replace(request, outcome=self._outcome)

    def result(self) -> RequestResult:
        """As it is now. Of a request of a node that has ended, what its streams moved is in the request."""
        ended, progress = self.ended, self._progress
        took = None if ended is None or ended.end_ms is None else max(0, ended.end_ms - ended.start_ms) / 1000
        result = RequestResult(
            request=str(self.request),
            outcome=str(self._outcome),
            error="" if ended is None else ended.error,
            bytes=None if progress is None else progress.bytes_moved,
            ranges=None if progress is None else progress.ranges_done,
            seconds=took,
        )
        if not isinstance(ended, NodeRequest) or took is None:
            return result
        return msgspec.structs.replace(result, bytes=ended.streamed_bytes, ranges=ended.streamed_ranges)

    def _check_open(self, report: TopologyReport, request: TopologyRequest, now_s: float) -> FollowedState:
        listed = open_report(report, request.id)
        assert listed is not None
        self._progress = listed.progress or self._progress
        waits_for = listed.waits_for
        if request.outcome is RequestOutcome.RUNNING:
            waits_for = waits_for or report.waits_for
        return FollowedState(
            label=self.label,
            state=_running_state(report, request),
            cause="" if waits_for is None else waits_for.text,
            cause_age="" if waits_for is None else seconds_text(waits_for.since_ms),
            progress=self._progress,
            bytes_per_s=self._rate(now_s),
        )

    def _rate(self, now_s: float) -> float | None:
        """Bytes per second; None: not known."""
        progress = self._progress
        if progress is None or progress.bytes_moved >= progress.bytes_total:
            return None
        if self._streams_since is None or progress.bytes_moved < self._streams_since[1]:
            self._streams_since = (now_s, progress.bytes_moved)
        began_s, first = self._streams_since
        if progress.bytes_moved == first or now_s <= began_s:
            return None
        return (progress.bytes_moved - first) / (now_s - began_s)


def _running_state(report: TopologyReport, request: TopologyRequest) -> str:
    if request.outcome is RequestOutcome.PENDING:
        return "pending"
    if request.error:
        return f"rolls back: {request.error}"
    row = _own_row(report, request)
    parts = ["" if row is None else str(row.state), str(report.transition or "")]
    return ", ".join(part for part in parts if part) or "running"


def _own_row(report: TopologyReport, request: TopologyRequest) -> Node | None:
    return row_of(report, request.host) if isinstance(request, NodeRequest) else None


def _cause(report: TopologyReport) -> str:
    return "" if report.waits_for is None else cause_text(report.waits_for)


def _is_settled(row: Node | None) -> bool:
    return row is None or row.state in (NodeState.LEFT, NodeState.NORMAL)
