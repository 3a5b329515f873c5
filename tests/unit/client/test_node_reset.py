"""Which folders may be emptied: every stage of a node against everything that its cluster may say."""

import uuid

import pytest

from ebla.client.node_reset import AbortFirst, MayReset, MustNotReset, can_join_as_it_is, decide_reset, was_member
from ebla.control.group0.join_state import JoinStage
from ebla.group0.join_messages import JoinNodeQueryAnswer, JoinRequestStatus
from ebla.model.identity import ClusterId, RequestId
from ebla.topology.states import NodeState, RequestOutcome

ATTEMPT = uuid.UUID(int=7)
SILENT = None
NOT_ACCEPTED = [JoinStage.FRESH, JoinStage.JOINING]
ACCEPTED = [stage for stage in JoinStage if stage.value not in ("fresh", "joining", "founding", "removed")]


def says(state: NodeState | None, outcome: RequestOutcome | None = None) -> JoinNodeQueryAnswer:
    request = None if outcome is None else JoinRequestStatus(attempt=ATTEMPT, outcome=outcome)
    return JoinNodeQueryAnswer(mode="group0", cluster=ClusterId(uuid.UUID(int=1)), state=state, request=request)


UNKNOWN = says(None)
PENDING = says(NodeState.NONE, RequestOutcome.PENDING)
RUNNING = says(NodeState.BOOTSTRAPPING, RequestOutcome.RUNNING)
ROLLING_BACK = says(NodeState.BOOTSTRAPPING, RequestOutcome.FAILED)
NORMAL = says(NodeState.NORMAL, RequestOutcome.DONE)
LEAVING = says(NodeState.DECOMMISSIONING)
LEFT = says(NodeState.LEFT, RequestOutcome.FAILED)

TABLE: list[tuple[list[JoinStage], JoinNodeQueryAnswer | None, type]] = [
    (NOT_ACCEPTED, SILENT, MayReset),
    (NOT_ACCEPTED, UNKNOWN, MayReset),
    (NOT_ACCEPTED, PENDING, AbortFirst),
    (NOT_ACCEPTED, RUNNING, AbortFirst),
    (NOT_ACCEPTED, ROLLING_BACK, MayReset),
    (NOT_ACCEPTED, NORMAL, MustNotReset),
    (NOT_ACCEPTED, LEAVING, MustNotReset),
    (NOT_ACCEPTED, LEFT, MayReset),
    (ACCEPTED, SILENT, MustNotReset),
    (ACCEPTED, UNKNOWN, MustNotReset),
    (ACCEPTED, PENDING, AbortFirst),
    (ACCEPTED, RUNNING, AbortFirst),
    (ACCEPTED, ROLLING_BACK, MustNotReset),
    (ACCEPTED, NORMAL, MustNotReset),
    (ACCEPTED, LEAVING, MustNotReset),
    (ACCEPTED, LEFT, MayReset),
    ([JoinStage.FOUNDING], SILENT, MustNotReset),
    ([JoinStage.FOUNDING], NORMAL, MustNotReset),
    ([JoinStage.REMOVED], SILENT, MayReset),
    ([JoinStage.REMOVED], LEFT, MayReset),
]


@pytest.mark.parametrize(("stages", "answer", "decision"), TABLE)
def test_only_a_folder_that_nobody_relies_on_may_be_emptied(
    stages: list[JoinStage], answer: JoinNodeQueryAnswer | None, decision: type
) -> None:
    for stage in stages:
        assert isinstance(decide_reset(stage, answer), decision), stage


def test_every_stage_is_in_the_table() -> None:
    assert {stage for stages, _, _ in TABLE for stage in stages} == set(JoinStage)


def test_the_abort_is_required_of_an_accepted_node_only() -> None:
    assert decide_reset(JoinStage.FRESH, PENDING) == AbortFirst(RequestId(ATTEMPT), is_required=False)
    assert decide_reset(JoinStage.MEMBER, RUNNING) == AbortFirst(RequestId(ATTEMPT), is_required=True)


def test_a_start_cannot_succeed_after_the_host_has_left_or_while_an_earlier_attempt_is_open() -> None:
    assert can_join_as_it_is(JoinStage.FRESH, SILENT)
    assert can_join_as_it_is(JoinStage.FRESH, UNKNOWN)
    assert not can_join_as_it_is(JoinStage.FRESH, PENDING)
    assert not can_join_as_it_is(JoinStage.FRESH, LEFT)
    assert not can_join_as_it_is(JoinStage.REMOVED, SILENT)
    assert can_join_as_it_is(JoinStage.MEMBER, RUNNING), "an accepted node continues its join"
    assert can_join_as_it_is(JoinStage.MEMBER, NORMAL)
    assert not can_join_as_it_is(JoinStage.MEMBER, LEFT)


def test_a_host_that_left_was_a_member_unless_its_join_failed() -> None:
    assert not was_member(JoinStage.REMOVED, LEFT), "its join was rolled back"
    assert was_member(JoinStage.REMOVED, says(NodeState.LEFT, RequestOutcome.DONE))
    assert was_member(JoinStage.MEMBER, says(NodeState.LEFT)), "the first node never joined"
    assert was_member(JoinStage.REMOVED, SILENT)
    assert not was_member(JoinStage.FRESH, SILENT)
    assert not was_member(JoinStage.MEMBER, NORMAL)
