"""`ebla topology` as text and as JSON, and requests by the first digits of their ids."""

import json
import uuid

import msgspec
import pytest
from tests.unit.client.topology_reports import HOSTS, JOIN, NAMES, OLD, QUEUED, ended, joining, request

from ebla.client.topology_view import bytes_text, find_request, report_json, report_lines, short_id
from ebla.model.errors import InvalidRequest, NotFound
from ebla.model.identity import RequestId
from ebla.topology.states import NodeState, RequestOutcome
from ebla.wire.topology_messages import WaitCause

BARRIER = WaitCause("barrier of version 58: 127.0.0.3: shard-1 runs requests of version 57", 8_000)
TEXT = """\
coordinator  node2 127.0.0.2, term 7        version 58, fence 57
transition   write_both_read_old for 12 s: join of node4, request 3f2a
waits for    barrier of version 58: 127.0.0.3: shard-1 runs requests of version 57 (8 s)
node1  127.0.0.1  normal         dc1/r1  16 tokens
node2  127.0.0.2  normal         dc1/r1  16 tokens
node3  127.0.0.3  normal         dc1/r1  16 tokens
node4  127.0.0.4  bootstrapping  dc1/r1  16 tokens
node5  127.0.0.5  none           dc1/r1  0 tokens
8c01  join of node5, pending  queued: position 1 behind 3f2a (11 s)
3f2b  join of node6, failed  2023-11-14 22:13:22Z  aborted: by an operator
"""
LOCAL = """\
coordinator  none known        version 61, fence 60
local state  the leader did not answer; this is the state of node3, up to 4 s old
transition   none
00000001  127.0.0.1  normal  dc1/r1  16 tokens
00000002  127.0.0.2  normal  dc1/r1  16 tokens
node3     127.0.0.3  normal  dc1/r1  16 tokens
00000004  127.0.0.4  normal  dc1/r1  16 tokens
3f2a  join of 127.0.0.4, done  2023-11-14 22:13:32Z
"""


def test_a_join_with_its_cause_the_queue_and_what_has_ended() -> None:
    assert "\n".join(report_lines(joining(waits_for=BARRIER), NAMES)) + "\n" == TEXT


def test_a_stream_shows_what_it_has_moved() -> None:
    line = report_lines(joining(moved=118_000_000), NAMES)[1]
    assert line.endswith("request 3f2a, 118 MB of 200 MB, 29 of 50 ranges")


def test_without_the_leader_the_age_of_the_local_state_is_shown_and_other_nodes_go_by_their_ids() -> None:
    report = msgspec.structs.replace(ended(RequestOutcome.DONE), coordinator=None, local_age_ms=4_000)
    assert "\n".join(report_lines(report, {HOSTS[2]: "node3"})) + "\n" == LOCAL


def test_only_the_last_ten_ended_requests_are_shown() -> None:
    many = tuple(
        msgspec.structs.replace(request(4, OLD, RequestOutcome.FAILED), error=str(number)) for number in range(30)
    )
    report = msgspec.structs.replace(ended(RequestOutcome.DONE), ended=many)
    assert [line.split()[-1] for line in report_lines(report, NAMES)][-10:] == [str(number) for number in range(10)]
    assert len(report_lines(report, NAMES)) == 2 + 4 + 10


def test_the_report_for_programs() -> None:
    shown = json.loads(json.dumps(report_json(joining(moved=8_000_000, waits_for=BARRIER), NAMES)))
    assert (shown["transition"], shown["version"], shown["waits_for"]) == ("write_both_read_old", 58, None)
    assert [(one["request"], one["outcome"]) for one in shown["open"]] == [
        (str(JOIN), "running"),
        (str(QUEUED), "pending"),
    ]
    assert shown["open"][0]["waits_for"] == {"text": BARRIER.text, "since_ms": 8_000}
    assert shown["open"][0]["progress"]["bytes_moved"] == 8_000_000
    assert shown["ended"][0]["error"] == "aborted: by an operator"
    assert [(one["name"], one["state"]) for one in shown["nodes"]][3:5] == [
        ("node4", "bootstrapping"),
        ("node5", "none"),
    ]


def test_a_request_goes_by_a_prefix_of_its_id_that_no_other_one_has() -> None:
    report = joining()
    assert find_request(report, "8c01").id == QUEUED
    assert find_request(report, str(JOIN).upper()).id == JOIN
    assert short_id(report, JOIN) == "3f2a"
    twin = msgspec.structs.replace(report.ended[0], id=RequestId(uuid.UUID(int=JOIN.int + 1)))
    alike = msgspec.structs.replace(report, ended=(twin,))
    assert short_id(alike, JOIN) == str(JOIN)
    with pytest.raises(InvalidRequest, match=r"2 requests begin with '3f2a'.*running.*failed"):
        find_request(alike, "3f2a")
    with pytest.raises(NotFound, match=r"no request 'aaaa'; open: 3f2a \(join, running\), 8c01 \(join, pending\)"):
        find_request(report, "aaaa")
    with pytest.raises(InvalidRequest, match="too little"):
        find_request(report, "3f2")


def test_bytes_in_decimal_units() -> None:
    assert [bytes_text(count) for count in (0, 999, 1_500, 118_000_000, 2 * 10**12)] == [
        "0 B",
        "999 B",
        "2 kB",
        "118 MB",
        "2 TB",
    ]


def test_a_rollback_shows_its_cause() -> None:
    report = joining()
    running = msgspec.structs.replace(report.open[0].request, error="aborted: enough")
    first = msgspec.structs.replace(report.open[0], request=running)
    lines = report_lines(msgspec.structs.replace(report, open=(first, *report.open[1:])), NAMES)
    assert lines[1].endswith("request 3f2a, rolls back: aborted: enough")
    assert NodeState.LEFT not in " ".join(lines[2:7])
