"""Whether a node's folder may be emptied, so that the machine joins again under a new host id. Pure.

Only what no other node relies on may be emptied. A node that was not accepted holds nothing. An accepted one may have
become `normal` after its folder was last written, so only the cluster knows; `left` is final, so any member's answer
that says so is right, also an old one.
"""

from dataclasses import dataclass

from ebla.control.group0.join_state import JoinStage
from ebla.group0.join_messages import JoinNodeQueryAnswer
from ebla.model.identity import RequestId
from ebla.topology.states import JOINING_STATES, NodeState, RequestOutcome

NOT_ACCEPTED = ("fresh", "joining")
"""Stages, by value, in which no Raft server has run. Any stage that is unknown here counts as accepted."""


@dataclass(frozen=True, slots=True)
class MayReset:
    why: str


@dataclass(frozen=True, slots=True)
class AbortFirst:
    """Its join is still open. Until it has ended, the cluster may complete it without this folder."""

    request: RequestId
    is_required: bool
    """False: the node was not accepted, so the folder may be emptied although no member takes the abort."""


@dataclass(frozen=True, slots=True)
class MustNotReset:
    why: str
    advice: str


ResetDecision = MayReset | AbortFirst | MustNotReset


def decide_reset(stage: JoinStage, answer: JoinNodeQueryAnswer | None) -> ResetDecision:
    """`answer`: what a member says of the host; None: no member answers."""
    if stage is JoinStage.REMOVED or (answer is not None and answer.state is NodeState.LEFT):
        return MayReset("it has left the cluster")
    if stage is JoinStage.FOUNDING:
        return MustNotReset("it creates the cluster", "start it; the other nodes wait for it")
    is_accepted = stage.value not in NOT_ACCEPTED
    if answer is None:
        if not is_accepted:
            return MayReset("it was never accepted")
        return MustNotReset(
            "it was accepted, and no member of its cluster can be reached to say whether it is in the ring",
            "start nodes of the cluster that `peers` names, then try again",
        )
    if answer.state is None:
        if not is_accepted:
            return MayReset("the cluster does not know it")
        return MustNotReset(
            "it was accepted, and the member that answered has not heard of it", "try again in a moment"
        )
    request = answer.request
    if answer.state in JOINING_STATES and request is not None and request.outcome in _OPEN:
        return AbortFirst(RequestId(request.attempt), is_required=is_accepted)
    if answer.state in JOINING_STATES and not is_accepted:
        return MayReset("its join has failed")
    if answer.state in JOINING_STATES:
        return MustNotReset(f"its row is {answer.state} and its join has ended", "wait until its row is left")
    return MustNotReset(f"it is a member, in the state {answer.state}", "start it, or remove it from the cluster first")


def can_join_as_it_is(stage: JoinStage, answer: JoinNodeQueryAnswer | None) -> bool:
    """Whether a start of the stopped node may lead to a member. Not if the host has left, and not if a process of it
    that has ended made a request: a new process has another attempt id, and only an accepted node continues."""
    if stage is JoinStage.REMOVED:
        return False
    if answer is None or answer.state is None:
        return True
    if answer.state is NodeState.LEFT:
        return False
    return not (stage.value in NOT_ACCEPTED and answer.state in JOINING_STATES)


_OPEN = (RequestOutcome.PENDING, RequestOutcome.RUNNING)


def was_member(stage: JoinStage, answer: JoinNodeQueryAnswer | None) -> bool:
    """Whether a host that has left was in the ring before, as far as is known: then its operator decides what becomes
    of the folder."""
    if answer is None:
        return stage is JoinStage.REMOVED
    never_joined = answer.request is not None and answer.request.outcome is RequestOutcome.FAILED
    return answer.state is NodeState.LEFT and not never_joined
