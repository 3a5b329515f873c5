"""Topology reports: requests by the first digits of their ids, lines for people, objects for programs. Pure."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

import msgspec

from ebla.model.errors import InvalidRequest, NotFound
from ebla.model.identity import HostId, RequestId
from ebla.topology.snapshot import Node, NodeRequest
from ebla.topology.states import NodeState, RequestOutcome
from ebla.wire.topology_messages import RequestReport, StreamProgress, TopologyReport, TopologyRequest, WaitCause

PREFIX_DIGITS_MIN = 4
SHOWN_ENDED = 10
LABEL_WIDTH = 13
BYTE_UNITS = ((10**12, "TB"), (10**9, "GB"), (10**6, "MB"), (10**3, "kB"))

Names = Mapping[HostId, str]
"""The names of local nodes."""


class RequestResult(msgspec.Struct, frozen=True, kw_only=True):
    """The final object of a command that runs or follows a request."""

    request: str | None
    outcome: str
    error: str = ""
    bytes: int | None = None
    """None: not known."""
    ranges: int | None = None
    seconds: float | None = None


# ---- finding requests


def all_requests(report: TopologyReport) -> tuple[TopologyRequest, ...]:
    """The open ones in the order of the queue, then the ended ones, newest first."""
    return (*(one.request for one in report.open), *report.ended)


def find_request(report: TopologyReport, text: str) -> TopologyRequest:
    """By its id, or its first digits."""
    if len(text) < PREFIX_DIGITS_MIN:
        raise InvalidRequest(
            f"{text!r} is too little of a request's id", advice=f"name {PREFIX_DIGITS_MIN} digits of it or more"
        )
    requests = all_requests(report)
    alike = [one for one in requests if str(one.id).startswith(text.lower())]
    if len(alike) == 1:
        return alike[0]
    shown = _candidates(alike or [one for one in requests if one.is_open], report)
    if alike:
        raise InvalidRequest(f"{len(alike)} requests begin with {text!r}: {shown}", advice="name more of the id")
    known = f"; open: {shown}" if shown else ""
    raise NotFound(f"there is no request {text!r}{known}", advice="see `ebla topology`")


def request_by_id(report: TopologyReport, request: RequestId) -> TopologyRequest | None:
    return next((one for one in all_requests(report) if one.id == request), None)


def latest_request(report: TopologyReport, host: HostId) -> NodeRequest | None:
    """Of that host: the open one, else the last that ended."""
    own = (one for one in all_requests(report) if isinstance(one, NodeRequest))
    return next((one for one in own if one.host == host), None)


def open_report(report: TopologyReport, request: RequestId) -> RequestReport | None:
    return next((one for one in report.open if one.request.id == request), None)


def row_of(report: TopologyReport, host: HostId) -> Node | None:
    return next((one for one in report.nodes if one.host == host), None)


def short_id(report: TopologyReport, request: RequestId) -> str:
    """As many digits as are needed to tell it from the other requests of the report."""
    own = str(request)
    others = [str(one.id) for one in all_requests(report) if one.id != request]
    return next(
        own[:digits]
        for digits in range(PREFIX_DIGITS_MIN, len(own) + 1)
        if digits == len(own) or not any(other.startswith(own[:digits]) for other in others)
    )


def _candidates(requests: Sequence[TopologyRequest], report: TopologyReport) -> str:
    return ", ".join(f"{short_id(report, one.id)} ({one.kind}, {one.outcome})" for one in requests[:SHOWN_ENDED])


# ---- for people


def report_lines(report: TopologyReport, names: Names) -> list[str]:
    running = next((one for one in report.open if one.request.outcome is RequestOutcome.RUNNING), None)
    cause = report.waits_for or (None if running is None else running.waits_for)
    lines = [_labelled("coordinator", _coordinator(report, names))]
    if report.local_age_ms is not None:
        age = f"the leader did not answer; this is the state of {_node_name(report, report.host, names)}"
        lines.append(_labelled("local state", f"{age}, up to {seconds_text(report.local_age_ms)} old"))
    lines.append(_labelled("transition", _transition(report, running, names)))
    if cause is not None:
        lines.append(_labelled("waits for", cause_text(cause)))
    lines += _aligned([_node_cells(node, names) for node in report.nodes if node.state is not NodeState.LEFT])
    lines += _aligned([_open_cells(report, one, names) for one in report.open if one is not running])
    lines += _aligned([_ended_cells(report, one, names) for one in report.ended[:SHOWN_ENDED]])
    return lines


def cause_text(cause: WaitCause) -> str:
    return f"{cause.text} ({seconds_text(cause.since_ms)})"


def seconds_text(milliseconds: int) -> str:
    return f"{milliseconds / 1000:.0f} s"


def bytes_text(count: int) -> str:
    for unit, name in BYTE_UNITS:
        if count >= unit:
            return f"{count / unit:.0f} {name}"
    return f"{count} B"


def moved_text(result: RequestResult) -> str:
    """With a space before it; empty: nothing was moved, or it is not known."""
    if not result.ranges or result.bytes is None:
        return ""
    return f" ({bytes_text(result.bytes)}, {result.ranges} range{'' if result.ranges == 1 else 's'})"


def request_text(report: TopologyReport, request: TopologyRequest, names: Names) -> str:
    """What is requested, of which node, and with which parameters."""
    if not isinstance(request, NodeRequest):
        return f"{request.kind}{f' of keyspace {request.keyspace}' if request.keyspace else ''}"
    ignored = ", ".join(_node_name(report, host, names) for host in request.ignored_nodes)
    parts = [
        "" if request.replaced is None else f"in place of {_node_name(report, request.replaced, names)}",
        "" if request.rebuild_source is None else f"from datacenter {request.rebuild_source}",
        f"ignoring {ignored}" if ignored else "",
    ]
    return " ".join([f"{request.kind} of {_node_name(report, request.host, names)}", *(part for part in parts if part)])


def progress_text(progress: StreamProgress) -> str:
    """Empty before anything is known."""
    if not progress.ranges_total:
        return ""
    total = f" of {bytes_text(progress.bytes_total)}" if progress.bytes_total else ""
    return f"{bytes_text(progress.bytes_moved)}{total}, {progress.ranges_done} of {progress.ranges_total} ranges"


def node_label(node: Node, names: Names) -> str:
    return f"{names[node.host]} {node.address}" if node.host in names else node.address


def _node_name(report: TopologyReport, host: HostId, names: Names) -> str:
    """A node in a sentence: its name, else its address, else its id."""
    if host in names:
        return names[host]
    row = row_of(report, host)
    return str(host) if row is None else row.address


def _coordinator(report: TopologyReport, names: Names) -> str:
    versions = f"version {report.version}, fence {report.fence}"
    if report.coordinator is None:
        return f"none known        {versions}"
    row = row_of(report, report.coordinator)
    who = str(report.coordinator) if row is None else node_label(row, names)
    return f"{who}, term {report.term}        {versions}"


def _transition(report: TopologyReport, running: RequestReport | None, names: Names) -> str:
    if report.transition is None and running is None:
        return "none"
    age = "" if report.transition_ms is None else f" for {seconds_text(report.transition_ms)}"
    state = "none" if report.transition is None else f"{report.transition}{age}"
    if running is None:
        return state
    request = running.request
    streamed = "" if running.progress is None else progress_text(running.progress)
    what = f"{request_text(report, request, names)}, request {short_id(report, request.id)}"
    error = f", rolls back: {request.error}" if request.error else ""
    return f"{state}: {what}{error}{f', {streamed}' if streamed else ''}"


def _node_cells(node: Node, names: Names) -> list[str]:
    tokens = f"{len(node.tokens)} token{'' if len(node.tokens) == 1 else 's'}"
    name = names.get(node.host, str(node.host)[:8])
    incomplete = "incomplete" if node.is_incomplete else ""
    return [name, node.address, str(node.state), f"{node.datacenter}/{node.rack}", tokens, incomplete]


def _open_cells(report: TopologyReport, one: RequestReport, names: Names) -> list[str]:
    request = one.request
    what = f"{request_text(report, request, names)}, {request.outcome}"
    return [short_id(report, request.id), what, "" if one.waits_for is None else cause_text(one.waits_for)]


def _ended_cells(report: TopologyReport, request: TopologyRequest, names: Names) -> list[str]:
    what = f"{request_text(report, request, names)}, {request.outcome}"
    ended = "" if request.end_ms is None else _clock_time(request.end_ms)
    return [short_id(report, request.id), what, ended, request.error]


def _clock_time(wall_ms: int) -> str:
    return f"{datetime.fromtimestamp(wall_ms / 1000, UTC):%Y-%m-%d %H:%M:%S}Z"


def _labelled(label: str, text: str) -> str:
    return f"{label:<{LABEL_WIDTH}}{text}"


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))] if rows else []
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]


# ---- for programs


def report_json(report: TopologyReport, names: Names) -> dict[str, object]:
    return {
        "host": str(report.host),
        "coordinator": None if report.coordinator is None else str(report.coordinator),
        "term": report.term,
        "version": report.version,
        "fence": report.fence,
        "transition": report.transition,
        "transition_ms": report.transition_ms,
        "local_age_ms": report.local_age_ms,
        "waits_for": _cause_json(report.waits_for),
        "nodes": [_node_json(node, names) for node in report.nodes],
        "open": [_open_json(one) for one in report.open],
        "ended": [_request_json(one) for one in report.ended[:SHOWN_ENDED]],
    }


def _node_json(node: Node, names: Names) -> dict[str, object]:
    return {
        "name": names.get(node.host),
        "host": str(node.host),
        "address": node.address,
        "state": str(node.state),
        "datacenter": node.datacenter,
        "rack": node.rack,
        "tokens": len(node.tokens),
        "request": None if node.request is None else str(node.request),
        "incomplete": node.is_incomplete,
    }


def _open_json(one: RequestReport) -> dict[str, object]:
    progress = None if one.progress is None else msgspec.structs.asdict(one.progress)
    return {**_request_json(one.request), "waits_for": _cause_json(one.waits_for), "progress": progress}


def _request_json(request: TopologyRequest) -> dict[str, object]:
    own: dict[str, object] = {"host": None}
    if isinstance(request, NodeRequest):
        own = {
            "host": str(request.host),
            "replaced": None if request.replaced is None else str(request.replaced),
            "ignored": [str(host) for host in request.ignored_nodes],
            "source_datacenter": request.rebuild_source,
        }
    return {
        "request": str(request.id),
        "kind": str(request.kind),
        **own,
        "outcome": str(request.outcome),
        "error": request.error,
        "start_ms": request.start_ms,
        "end_ms": request.end_ms,
    }


def _cause_json(cause: WaitCause | None) -> dict[str, object] | None:
    return None if cause is None else {"text": cause.text, "since_ms": cause.since_ms}
