"""The checker of requests that have ended sees an outcome that the rows contradict, and what is left of a request."""

import dataclasses
from typing import Any

import pytest
from tests.unit.topology.small_cluster import cluster, host, node, request_id, session

from ebla.model.identity import RequestId
from ebla.model.token import Token
from ebla.sim.checkers.request_outcomes import is_ended_by_other, last_problem, outcome_problem
from ebla.topology.frozen_map import FrozenMap
from ebla.topology.snapshot import Exclusion, NodeRequest, Session, Snapshot, TopologyState
from ebla.topology.states import NodeRequestKind, NodeState, RequestOutcome, SessionKind, TransitionState

JOIN, LEAVE, REMOVE = NodeRequestKind.JOIN, NodeRequestKind.LEAVE, NodeRequestKind.REMOVE
REPLACE, REBUILD = NodeRequestKind.REPLACE, NodeRequestKind.REBUILD
DONE, FAILED = RequestOutcome.DONE, RequestOutcome.FAILED
NORMAL, LEFT = NodeState.NORMAL, NodeState.LEFT
ID: RequestId = request_id(7)


def request(kind: NodeRequestKind, outcome: RequestOutcome, **fields: Any) -> NodeRequest:
    replaced = host(2) if kind is REPLACE else None
    return NodeRequest(
        id=ID, kind=kind, host=host(1), initiator=host(3), start_ms=1, replaced=replaced, outcome=outcome, **fields
    )


def rows(state: NodeState, replaced: NodeState = NORMAL, transition: TransitionState | None = None) -> Snapshot:
    """Of the node of the request, of the one that it replaces, and of another."""
    found = [
        node(1, state=state, tokens=(Token(1),) if state is NORMAL else ()),
        node(2, state=replaced, tokens=(Token(2),) if replaced is NORMAL else ()),
        node(3, state=NORMAL, tokens=(Token(3),)),
    ]
    return cluster(*found, transition=transition)


@pytest.mark.parametrize(
    ("kind", "outcome", "snapshot", "is_true"),
    [
        (LEAVE, DONE, rows(LEFT), True),
        (LEAVE, DONE, rows(NodeState.DECOMMISSIONING, transition=TransitionState.LEFT_TOKEN_RING), True),
        (LEAVE, DONE, rows(NORMAL), False),
        (LEAVE, FAILED, rows(NORMAL), True),
        (LEAVE, FAILED, rows(NodeState.DECOMMISSIONING, transition=TransitionState.ROLLBACK_TO_NORMAL), False),
        (REMOVE, DONE, rows(NORMAL), False),
        (REMOVE, FAILED, rows(NORMAL), True),
        (JOIN, DONE, rows(NORMAL), True),
        (JOIN, DONE, rows(LEFT), False),
        (JOIN, FAILED, rows(LEFT), True),
        (JOIN, FAILED, rows(NORMAL), False),
        (REPLACE, DONE, rows(NORMAL, replaced=LEFT), True),
        (REPLACE, DONE, rows(NORMAL, replaced=NORMAL), False),
        (REPLACE, FAILED, rows(LEFT, replaced=NORMAL), True),
        (REPLACE, FAILED, rows(LEFT, replaced=LEFT), False),
        (REBUILD, DONE, rows(NORMAL), True),
        (REBUILD, FAILED, rows(NORMAL), True),
        (REBUILD, DONE, rows(NodeState.REBUILDING), False),
    ],
)
def test_the_rows_say_what_became_of_a_request(
    kind: NodeRequestKind, outcome: RequestOutcome, snapshot: Snapshot, is_true: bool
) -> None:
    assert (outcome_problem(request(kind, outcome), snapshot) is None) is is_true


def test_a_session_of_an_ended_request_is_found() -> None:
    opened = Session(id=session(1), kind=SessionKind.REQUEST, request=ID)
    snapshot = dataclasses.replace(rows(NORMAL), sessions=FrozenMap({opened.id: opened}))
    assert "its session is open" in str(outcome_problem(request(LEAVE, FAILED), snapshot))


def test_a_host_that_stays_excluded_for_no_reason_is_found() -> None:
    ended = request(REMOVE, FAILED)
    ignoring = dataclasses.replace(rows(NORMAL), state=TopologyState(ignored_nodes=(host(1),)))
    assert "still excluded" in str(outcome_problem(ended, ignoring))
    exclusion = Exclusion(host=host(1), by=host(3), since_ms=1)
    by_failover = TopologyState(ignored_nodes=(host(1),), exclusions=(exclusion,))
    assert outcome_problem(ended, dataclasses.replace(ignoring, state=by_failover)) is None


def test_a_request_of_a_node_that_is_replaced_is_ended_by_another() -> None:
    ended = request(LEAVE, FAILED)
    assert not is_ended_by_other(ended, rows(NORMAL))
    assert is_ended_by_other(ended, rows(LEFT))
    other = NodeRequest(id=request_id(8), kind=REPLACE, host=host(4), initiator=host(4), start_ms=1, replaced=host(1))
    replacing = dataclasses.replace(rows(NORMAL), node_requests=FrozenMap({other.id: other}))
    assert is_ended_by_other(ended, replacing)


def test_what_is_done_is_not_undone() -> None:
    assert last_problem([request(LEAVE, DONE), request(REPLACE, FAILED)], rows(LEFT)) is None
    assert "is done, and" in str(last_problem([request(LEAVE, DONE)], rows(NORMAL)))
    assert "is done, and" in str(last_problem([request(REPLACE, DONE)], rows(NORMAL, replaced=NORMAL)))
