"""Follows a topology request through the reports of any nodes, until it ends. Pure: the caller fetches and waits."""

from dataclasses import dataclass

from ebla.client.topology_view import (
    RequestResult,
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
from ebla.wire.topology_messages import StreamProgress, TopologyReport


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowedState:
    """One look at a request. `state` and `cause` change seldom, the figures all the time."""

    label: str
    state: str
    cause: str = ""
    """What it waits for, without its age."""
    cause_age: str = ""
    progress: StreamProgress | None = None
    left_s: float | None = None

    @property
    def text(self) -> str:
        parts = [self.state]
        if self.cause:
            parts.append(f"{self.cause}{f' ({self.cause_age})' if self.cause_age else ''}")
        if self.progress is not None and (figures := progress_text(self.progress)):
            parts.append(figures if self.left_s is None else f"{figures}, {self.left_s:.0f} s left")
        return f"{self.label}: {'; '.join(parts)}"


class RequestFollower:
    """Feed it reports; `ended` is set once the request has ended. Reports of a node that lags behind an earlier report
    are ignored: the next report may come from another node than the last one."""

    def __init__(self, request: RequestId, label: str, *, until_left: bool = False) -> None:
        """`until_left`: wait also until the node's row says so, which is the end of a rollback."""
        self.request = request
        self.label = label
        self.ended: NodeRequest | None = None
        self._until_left = until_left
        self._version = 0
        self._outcome = RequestOutcome.PENDING
        self._progress: StreamProgress | None = None
        self._streams_since: tuple[float, int] | None = None
        """When the first bytes were seen, and how many: the rate is measured from there."""

    def look(self, report: TopologyReport, now_s: float) -> FollowedState:
        if report.version < self._version:
            return FollowedState(label=self.label, state=str(self._outcome), cause="the node that answers lags behind")
        self._version = report.version
        request = request_by_id(report, self.request)
        if request is None:
            raise NotFound(f"request {self.request} is not listed any more", advice="see `ebla topology`")
        self._outcome = request.outcome
        if request.is_open or open_report(report, self.request) is not None:  # or its last barrier has not passed
            return self._look_at_open(report, request, now_s)
        row = row_of(report, request.host)
        if self._until_left and request.outcome is RequestOutcome.FAILED and not _has_left(row):
            return FollowedState(label=self.label, state=f"rolls back: {request.error}", cause=_cause(report))
        self.ended = request
        return FollowedState(label=self.label, state=str(request.outcome))

    def result(self) -> RequestResult:
        """As it is now. Of a request that has ended, what its streams moved is in the request."""
        ended, progress = self.ended, self._progress or StreamProgress()
        took = None if ended is None or ended.end_ms is None else max(0, ended.end_ms - ended.start_ms) / 1000
        return RequestResult(
            request=str(self.request),
            outcome=str(self._outcome),
            error="" if ended is None else ended.error,
            bytes=progress.bytes_moved if ended is None else ended.streamed_bytes,
            ranges=progress.ranges_done if ended is None else ended.streamed_ranges,
            seconds=took,
        )

    def _look_at_open(self, report: TopologyReport, request: NodeRequest, now_s: float) -> FollowedState:
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
            left_s=self._seconds_left(now_s),
        )

    def _seconds_left(self, now_s: float) -> float | None:
        progress = self._progress
        if progress is None or not progress.bytes_total:
            return None
        if self._streams_since is None or progress.bytes_moved < self._streams_since[1]:
            self._streams_since = (now_s, progress.bytes_moved)
        began_s, first = self._streams_since
        if progress.bytes_moved == first or now_s <= began_s:
            return None
        rate = (progress.bytes_moved - first) / (now_s - began_s)
        return max(0, progress.bytes_total - progress.bytes_moved) / rate


def _running_state(report: TopologyReport, request: NodeRequest) -> str:
    if request.outcome is RequestOutcome.PENDING:
        return "pending"
    if request.error:
        return f"rolls back: {request.error}"
    row = row_of(report, request.host)
    state = "running" if row is None else str(row.state)
    return state if report.transition is None else f"{state}, {report.transition}"


def _cause(report: TopologyReport) -> str:
    return "" if report.waits_for is None else cause_text(report.waits_for)


def _has_left(row: Node | None) -> bool:
    return row is None or row.state is NodeState.LEFT
