"""The tables are total: every request in every state has a row, and every result has one."""

import itertools
import uuid

from ebla.leadership.activities import ADVICE, ENDS, PRECONDITIONS, EndReason, Precondition
from ebla.leadership.lease_agent import (
    RULES,
    ActiveLease,
    AgentState,
    BlockedLease,
    ExpiringLease,
    LeaseAgent,
    LeaseCall,
    NodeFacts,
    NoLease,
    Promise,
    rule_for,
)
from ebla.leadership.lease_worker import RESULTS, FailedCall
from ebla.leadership.messages import LeaseGrant, LeaseId, LeaseReply, LeaseRequest
from ebla.model.identity import HistoryId, HostId

HOSTS = [HostId(uuid.UUID(int=number)) for number in (1, 2)]
IDS = [LeaseId(uuid.UUID(int=number)) for number in (11, 12)]
HISTORIES = [HistoryId(uuid.UUID(int=number)) for number in (21, 22)]


def _promise(number: int) -> Promise:
    return Promise(grant=LeaseGrant(HOSTS[0], IDS[0], number), history=HISTORIES[0], term=3, period_ms=15_000)


def _states() -> list[AgentState]:
    return [
        NoLease(),
        ActiveLease(promise=_promise(2), expires_ms=99, renewed_ms=0),
        ExpiringLease(_promise(2)),
        BlockedLease(99),
    ]


def _agent(state: AgentState) -> LeaseAgent:
    agent = LeaseAgent(lambda _: ["a"])
    agent.state = state
    if isinstance(state, ActiveLease | ExpiringLease):
        agent._remember(IDS[0]).highest_granted = 2
    return agent


def test_every_request_in_every_state_has_a_row_and_every_row_is_reached() -> None:
    reached = set()
    requests = itertools.product(HOSTS, IDS, (0, 1, 2, 3), (3_999, 15_000), HISTORIES, (2, 3, 4))
    for holder, lease_id, number, period_ms, history, term in requests:
        request = LeaseRequest(
            grant=LeaseGrant(holder, lease_id, number), period_ms=period_ms, history=history, term=term
        )
        for state, sender, members in itertools.product(_states(), HOSTS, ([], HOSTS)):
            facts = NodeFacts(history=HISTORIES[0], members=members, term=3)
            call = LeaseCall(request=request, sender=sender, facts=facts, now_ms=1)
            reached.add(rule_for(_agent(state), call).number)
    assert reached == {rule.number for rule in RULES}


def test_rows_1_to_5_change_nothing() -> None:
    requests = itertools.product(HOSTS, IDS, (0, 1, 2), (3_999, 15_000), HISTORIES, (2, 9))
    for holder, lease_id, number, period_ms, history, term in requests:
        request = LeaseRequest(
            grant=LeaseGrant(holder, lease_id, number), period_ms=period_ms, history=history, term=term
        )
        for state in _states():
            agent = _agent(state)
            facts = NodeFacts(history=HISTORIES[0], members=HOSTS, term=3)
            call = LeaseCall(request=request, sender=holder, facts=facts, now_ms=1)
            if rule_for(agent, call).number <= 5:
                decision = agent.decide(call)
                assert (agent.state, agent.newest_term, decision.save) == (state, 0, None)
                assert decision.answer.reply is not LeaseReply.OK


def test_every_result_of_a_call_has_a_row() -> None:
    assert set(RESULTS) == {*LeaseReply, *FailedCall}


def test_every_precondition_and_every_end_of_an_activity_has_a_row() -> None:
    own_events = {EndReason.LEADER_PROCESS_DIED, EndReason.FINISHED, EndReason.FAILED, EndReason.NOT_STARTED}
    assert [precondition for precondition, _ in PRECONDITIONS] == list(Precondition)
    assert {reason for reason, _ in ENDS} == set(EndReason) - own_events
    assert set(ADVICE) == set(Precondition)


def test_an_agent_remembers_64_lease_ids_and_always_that_of_the_present_lease() -> None:
    agent = _agent(_states()[1])
    for number in range(100, 164):
        agent.abolish(LeaseId(uuid.UUID(int=number)), 1)
    spent = [agent.is_spent(LeaseGrant(HOSTS[1], LeaseId(uuid.UUID(int=number)), 1)) for number in range(100, 164)]
    assert spent == [False] + [True] * 63
    assert agent.is_spent(LeaseGrant(HOSTS[0], IDS[0], 1))
