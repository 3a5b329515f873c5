"""A request is followed through the reports of any nodes."""

import msgspec
import pytest
from tests.unit.client.topology_reports import JOIN, QUEUED, ended, joining, request

from ebla.client.request_following import RequestFollower
from ebla.model.errors import NotFound
from ebla.model.identity import TopologyVersion
from ebla.topology.states import NodeState, RequestOutcome
from ebla.wire.topology_messages import RequestReport, WaitCause

BARRIER = WaitCause("barrier of version 58: 127.0.0.3: bulk holds version 57", 8_000)


def test_a_join_shows_its_state_its_cause_what_it_moves_and_the_time_left() -> None:
    follower = RequestFollower(JOIN, "node4 127.0.0.4")
    assert follower.check(joining(waits_for=BARRIER), 0.0).text == (
        "node4 127.0.0.4: bootstrapping, write_both_read_old; "
        "barrier of version 58: 127.0.0.3: bulk holds version 57 (8 s)"
    )
    follower.check(joining(moved=40_000_000), 10.0)
    assert follower.check(joining(moved=80_000_000), 14.0).text == (
        "node4 127.0.0.4: bootstrapping, write_both_read_old; 80 MB of 200 MB, 20 of 50 ranges, 10 MB/s, 12 s left"
    )
    assert follower.ended is None
    follower.check(ended(RequestOutcome.DONE), 20.0)
    result = follower.result()
    assert (result.request, result.outcome, result.error) == (str(JOIN), "done", "")
    assert (result.bytes, result.ranges, result.seconds) == (8_000_000, 2, 12.3)


def test_no_time_is_left_to_show_when_more_has_moved_than_was_expected() -> None:
    follower = RequestFollower(JOIN, "node4")
    follower.check(joining(moved=40_000_000), 10.0)
    assert follower.check(joining(moved=200_000_000), 14.0).left_s is None


def test_a_pending_request_shows_its_position() -> None:
    text = RequestFollower(QUEUED, "node5").check(joining(), 0.0).text
    assert text == "node5: pending; queued: position 1 behind 3f2a (11 s)"


def test_a_report_of_a_node_that_lags_behind_takes_nothing_back() -> None:
    follower = RequestFollower(JOIN, "node4")
    follower.check(joining(version=60), 0.0)
    assert follower.check(joining(version=55), 1.0).cause == "the node that answers lags behind"
    assert follower.result().outcome == "running"


def test_what_nobody_saw_running_has_the_figures_of_the_request() -> None:
    follower = RequestFollower(JOIN, "node4")
    follower.check(ended(RequestOutcome.FAILED, "cancelled: node3 is down", NodeState.LEFT), 0.0)
    result = follower.result()
    assert (result.outcome, result.error) == ("failed", "cancelled: node3 is down")
    assert (result.bytes, result.ranges) == (8_000_000, 2)


def test_a_rollback_has_ended_when_the_row_is_left_or_normal() -> None:
    follower = RequestFollower(JOIN, "node4", until_settled=True)
    halfway = follower.check(ended(RequestOutcome.FAILED, "aborted: x", NodeState.BOOTSTRAPPING), 0.0)
    assert (halfway.state, follower.ended) == ("rolls back: aborted: x", None)
    for state in (NodeState.LEFT, NodeState.NORMAL):
        follower = RequestFollower(JOIN, "node4", until_settled=True)
        follower.check(ended(RequestOutcome.FAILED, "aborted: x", state), 1.0)
        assert follower.ended is not None


def test_a_request_that_is_forgotten_is_an_error() -> None:
    follower = RequestFollower(JOIN, "node4")
    follower.check(joining(), 0.0)
    without = msgspec.structs.replace(ended(RequestOutcome.DONE), ended=())
    assert follower.check(without, 1.0).cause == "the node that answers lags behind", "it may be a new request"
    follower.check(joining(version=62), 9.0)
    unlisted = msgspec.structs.replace(without, version=TopologyVersion(62))
    follower.check(unlisted, 10.0)
    follower.check(unlisted, 19.9)
    with pytest.raises(NotFound):
        follower.check(unlisted, 20.0)


def test_a_request_whose_end_no_report_showed_has_unknown_figures() -> None:
    """The node that left was the only one that could be asked."""
    follower = RequestFollower(JOIN, "node4")
    follower.conclude(request(4, JOIN))
    assert follower.ended is not None
    result = follower.result()
    assert (result.outcome, result.bytes, result.ranges, result.seconds) == ("done", None, None, None)


def test_what_ended_is_followed_until_its_last_barrier_has_passed() -> None:
    follower, done = RequestFollower(JOIN, "node4"), ended(RequestOutcome.DONE)
    waiting = msgspec.structs.replace(done, open=(RequestReport(request=done.ended[0], waits_for=BARRIER),), ended=())
    assert "barrier of version 58" in follower.check(waiting, 0.0).text
    assert follower.ended is None
    follower.check(done, 1.0)
    assert follower.ended is not None
