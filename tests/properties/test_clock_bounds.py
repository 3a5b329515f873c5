"""The two bounds on clocks that the documentation gives, for any values of the setting, and that they are tight."""

import uuid
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebla.leadership.activities import Activity, ActivityEnded, ActivitySpec
from ebla.leadership.core import LeadershipCore, RaftFacts
from ebla.leadership.lease_agent import LeaseAgent, LeaseCall, NodeFacts
from ebla.leadership.lease_worker import StartCall
from ebla.leadership.messages import LeaseAnswer, LeaseGrant, LeaseId, LeaseReply, LeaseRequest
from ebla.leadership.quorum import AllOf
from ebla.leadership.renewal import LeaseRenewal
from ebla.model.identity import HistoryId, HostId
from ebla.model.lease_settings import STOP_MARGIN_MS, LeaseSettings, lease_settings_problem

HISTORY = HistoryId(uuid.UUID(int=7))
LEADER, NODE, OTHER = (HostId(uuid.UUID(int=number)) for number in (1, 2, 3))
MEMBERS = (LEADER, NODE, OTHER)
SUCCESSOR = LeaseGrant(OTHER, LeaseId(uuid.UUID(int=12)), 1)
RAFT = RaftFacts(leads=True, term=1, voters=((LEADER, NODE),))


def request(agent: LeaseAgent, grant: LeaseGrant, period_ms: int, now_ms: int) -> LeaseReply:
    asked = LeaseRequest(grant=grant, period_ms=period_ms, history=HISTORY, term=1)
    facts = NodeFacts(history=HISTORY, members=MEMBERS, term=1)
    decision = agent.decide(LeaseCall(request=asked, sender=grant.holder, facts=facts, now_ms=now_ms))
    if decision.save is None:
        return decision.answer.reply
    agent.writing(decision.save, now_ms)
    agent.written(decision.save)
    return agent.complete(decision, now_ms).reply


@dataclass
class CutOff:
    """A leader that reaches its node once, at time 0, and acts under both leases from then on."""

    settings: LeaseSettings
    core: LeadershipCore = field(default_factory=lambda: LeadershipCore(LEADER))
    node: LeaseAgent = field(default_factory=lambda: LeaseAgent(lambda _: ()))

    def __post_init__(self) -> None:
        self.core.renewal = LeaseRenewal(LeaseId(uuid.UUID(int=11)), 1)
        self.core.renewal.set_members((LEADER, NODE), 0)
        spec = ActivitySpec(name="work", domain="d", quorum=(AllOf(),), wait_ms=self.settings.period_ms)
        self.activity: Activity = self.core.registry.submit(spec, self.core.view(RAFT, 0))

    def run_until(self, end_ms: int) -> None:
        """By the leader's clock. The activity ignores its cancellation."""
        now_ms = 0
        while now_ms <= end_ms:
            while not (effects := self.core.step(RAFT, now_ms, self.settings)).is_empty:
                for effect in effects.workers:
                    if isinstance(effect, StartCall) and (effect.host == LEADER or now_ms == 0):
                        self._answer(effect, now_ms)
            wake_ms = self.core.wake_ms(self.settings)
            assert wake_ms is not None
            now_ms = wake_ms if wake_ms > now_ms else now_ms + 100  # an activity that is overdue stays so

    def _answer(self, effect: StartCall, now_ms: int) -> None:
        agent = self.core.agent if effect.host == LEADER else self.node
        assert self.core.renewal is not None
        grant = LeaseGrant(LEADER, self.core.renewal.lease_id, effect.call.grant_number)
        assert request(agent, grant, effect.call.period_ms, now_ms) is LeaseReply.OK
        self.core.renewal.workers[effect.host].answered(
            effect.call.serial,
            LeaseAnswer(reply=LeaseReply.OK),
            rtt_ms=0.0,
            now_ms=now_ms,
            settings=self.settings,
        )

    def may_act(self, now_ms: int) -> bool:
        try:
            self.core.registry.check_effect(self.activity.number, self.core.view(RAFT, now_ms))
        except ActivityEnded:
            return False
        return True

    def is_ended(self, now_ms: int) -> bool:
        """Its process has ended, at the latest after the margin."""
        return bool(self.core.registry.overdue(now_ms - STOP_MARGIN_MS, self.settings.activity_stop_ms))

    def successor_starts_ms(self, rate: float) -> int:
        """When the node, whose clock is so much faster, grants its lease to another leader; by the leader's clock."""
        now_ms = int(self.settings.period_ms / rate)
        while request(self.node, SUCCESSOR, self.settings.period_ms, int(now_ms * rate)) is not LeaseReply.OK:
            now_ms += 1
        return now_ms


@st.composite
def lease_settings(draw: st.DrawFn) -> LeaseSettings:
    period_ms = draw(st.integers(4_000, 120_000))
    grace_ms = draw(st.integers(1_500, period_ms // 2))
    activity_stop_ms = draw(st.integers(500, grace_ms - STOP_MARGIN_MS))
    chosen = LeaseSettings(period_ms=period_ms, grace_ms=grace_ms, activity_stop_ms=activity_stop_ms)
    assert not lease_settings_problem(chosen)
    return chosen


def effects_bound(chosen: LeaseSettings) -> float:
    return chosen.period_ms / (chosen.period_ms - chosen.grace_ms)


def ends_bound(chosen: LeaseSettings) -> float:
    return chosen.period_ms / (chosen.period_ms - chosen.grace_ms + chosen.activity_stop_ms + STOP_MARGIN_MS)


def test_the_bounds_of_the_defaults_are_the_documented_ones() -> None:
    assert (round(effects_bound(LeaseSettings()), 2), round(ends_bound(LeaseSettings()), 2)) == (1.5, 1.07)


@settings(max_examples=20, deadline=None)
@given(chosen=st.one_of(st.just(LeaseSettings()), lease_settings()), share=st.floats(0.3, 1.0))
def test_up_to_the_first_bound_an_old_leader_has_no_effect_after_its_successor_starts(
    chosen: LeaseSettings, share: float
) -> None:
    cut_off = CutOff(chosen)
    starts_ms = cut_off_until_successor(cut_off, effects_bound(chosen) * share)
    assert not cut_off.may_act(starts_ms)


@settings(max_examples=20, deadline=None)
@given(chosen=st.one_of(st.just(LeaseSettings()), lease_settings()), share=st.floats(0.3, 1.0))
def test_up_to_the_second_bound_its_activities_have_ended_by_then(chosen: LeaseSettings, share: float) -> None:
    cut_off = CutOff(chosen)
    starts_ms = cut_off_until_successor(cut_off, ends_bound(chosen) * share)
    assert cut_off.is_ended(starts_ms)


@pytest.mark.parametrize(("bound", "may_act"), [(effects_bound, True), (ends_bound, False)])
def test_beyond_a_bound_its_promise_is_broken(bound: Callable[[LeaseSettings], float], may_act: bool) -> None:
    cut_off = CutOff(LeaseSettings())
    starts_ms = cut_off_until_successor(cut_off, bound(cut_off.settings) * 1.01)
    assert cut_off.may_act(starts_ms) == may_act
    assert not cut_off.is_ended(starts_ms)


def cut_off_until_successor(cut_off: CutOff, rate: float) -> int:
    """Runs the leader up to the time at which a successor can start, and returns that time by the leader's clock."""
    cut_off.run_until(0)
    assert cut_off.may_act(0)
    starts_ms = cut_off.successor_starts_ms(rate)
    cut_off.run_until(starts_ms)
    return starts_ms
