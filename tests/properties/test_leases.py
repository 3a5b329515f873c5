"""INV-LEASE-1 and INV-LEASE-2 hold for any clock rates within the bound, any delays, losses, restarts and abolishes."""

import random
import uuid
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebla.leadership.lease_agent import DAMAGED_FILE, LeaseAgent, LeaseCall, NodeFacts
from ebla.leadership.lease_worker import DropCall, FailedCall, StartCall, WorkerEffect
from ebla.leadership.messages import LeaseAnswer, LeaseAvailable, LeaseFileContent, LeaseGrant, LeaseId, LeaseRequest
from ebla.leadership.renewal import LeaseRenewal
from ebla.model.identity import HistoryId, HostId
from ebla.model.lease_settings import LeaseSettings
from ebla.sim.checkers.leadership import LeadershipRecord

HISTORY = HistoryId(uuid.UUID(int=7))
HOSTS = tuple(HostId(uuid.UUID(int=number)) for number in (1, 2, 3))
SETTINGS = LeaseSettings()


@dataclass(kw_only=True)
class Node:
    host: HostId
    rate: float
    agent: LeaseAgent
    file: LeaseFileContent | None = None
    booted_s: float = 0.0
    is_down_until_s: float = 0.0
    renewal: LeaseRenewal | None = None
    calls: dict[int, float] = field(default_factory=dict)

    def clock_ms(self, now_s: float) -> int:
        return int((now_s - self.booted_s) * self.rate * 1000)


@dataclass(frozen=True)
class Message:
    due_s: float
    to: HostId
    body: object


@dataclass(frozen=True)
class Request:
    request: LeaseRequest
    serial: int
    life: LeaseId


@dataclass(frozen=True)
class Answer:
    node: HostId
    answer: LeaseAnswer | None
    serial: int
    life: LeaseId


@dataclass(frozen=True)
class Notice:
    node: HostId
    available: LeaseAvailable


class World:
    def __init__(self, rng: random.Random, rates: list[float]) -> None:
        self.rng = rng
        self.now_s = 0.0
        self.term = 0
        self.nodes = {
            host: Node(host=host, rate=rate, agent=LeaseAgent(lambda _: ()))
            for host, rate in zip(HOSTS, rates, strict=True)
        }
        self.messages: list[Message] = []
        self.record = LeadershipRecord()
        self.problems: list[str] = []
        self.granted = 0

    def run(self, seconds: float) -> None:
        while self.now_s < seconds and not self.problems:
            self.now_s += self.rng.choice((0.001, 0.05, 0.3, 1.0))
            self.disturb()
            self.deliver()
            for node in self.nodes.values():
                self.tick(node)
            self.check_counted()

    def note(self, problem: str | None) -> None:
        if problem is not None:
            self.problems.append(f"{self.now_s:.3f}: {problem}")

    def send(self, to: HostId, body: object) -> None:
        if self.rng.random() < 0.9:
            self.messages.append(
                Message(self.now_s + self.rng.choice((0.0, 0.01, 0.4, 6.0, 20.0)) * self.rng.random(), to, body)
            )

    # ---- faults and leaders

    def disturb(self) -> None:
        dice = self.rng.random()
        node = self.rng.choice(list(self.nodes.values()))
        if dice < 0.02:
            self.restart(node)
        elif dice < 0.05:
            self.elect(node)
        elif dice < 0.06 and node.renewal is not None:
            self.step_down(node)

    def elect(self, node: Node) -> None:
        """The former leader may not notice for a while."""
        self.term += 1
        if node.renewal is not None:
            self.step_down(node)
        node.renewal = LeaseRenewal(LeaseId(uuid.UUID(int=self.rng.getrandbits(128))), self.term)
        node.renewal.set_members(HOSTS, node.clock_ms(self.now_s))

    def step_down(self, node: Node) -> None:
        assert node.renewal is not None
        lease_id, node.renewal = node.renewal.lease_id, None
        self.record.ended_by_holder(lease_id)
        for host in HOSTS:
            self.send(host, lease_id)

    def restart(self, node: Node) -> None:
        now_ms = node.clock_ms(self.now_s)
        if self.rng.random() < 0.3 and (content := node.agent.content(now_ms)) is not None:
            node.file = content
        if node.renewal is not None:
            self.record.ended_by_holder(node.renewal.lease_id)
        node.renewal = None
        self.now_s += self.rng.choice((0.0, 0.5, 4.0))
        if self.rng.random() < 0.5:
            node.booted_s = self.now_s
        node.agent = LeaseAgent(lambda _: ())
        if node.file is not None and self.rng.random() < 0.1:
            node.file = DAMAGED_FILE
        node.agent.start(node.file, node.host, node.clock_ms(self.now_s))

    # ---- steps

    def tick(self, node: Node) -> None:
        now_ms = node.clock_ms(self.now_s)
        if self.rng.random() < 0.7:
            node.agent.tick(now_ms)
        due_ms = node.agent.save_due_ms()
        content = node.agent.content(now_ms)
        if due_ms is not None and content is not None and now_ms >= due_ms and self.rng.random() < 0.8:
            node.agent.writing(content, now_ms)
            if self.rng.random() < 0.9:
                node.file = content
                node.agent.written(content)
        for ended in node.agent.take_ended():
            for host in ended.refused:
                self.send(
                    host, Notice(node.host, LeaseAvailable(ended.promise.grant.lease_id, ended.promise.grant.number))
                )
        if node.renewal is not None and self.rng.random() < 0.8:
            node.renewal.activities_ended()
            self.carry_out(node, node.renewal.poll(now_ms, SETTINGS))

    def carry_out(self, node: Node, effects: list[WorkerEffect]) -> None:
        for effect in effects:
            if isinstance(effect, StartCall):
                assert node.renewal is not None
                lease_id, call = node.renewal.lease_id, effect.call
                request = LeaseRequest(
                    grant=LeaseGrant(node.host, lease_id, call.grant_number),
                    period_ms=call.period_ms,
                    history=HISTORY,
                    term=node.renewal.term,
                )
                self.send(effect.host, Request(request, call.serial, lease_id))
            else:
                assert not isinstance(effect, DropCall) or node.renewal is not None

    def deliver(self) -> None:
        due = [one for one in self.messages if one.due_s <= self.now_s]
        self.messages = [one for one in self.messages if one.due_s > self.now_s]
        self.rng.shuffle(due)
        for message in due:
            node = self.nodes[message.to]
            match message.body:
                case Request():
                    self.receive(node, message.body)
                case Answer():
                    self.answered(node, message.body)
                case Notice(host, notice) if node.renewal is not None:
                    node.renewal.workers[host].available(notice, node.clock_ms(self.now_s))
                case uuid.UUID():
                    node.agent.abolish(LeaseId(message.body), node.clock_ms(self.now_s))
                case _:
                    pass

    def receive(self, node: Node, received: Request) -> None:
        request, now_ms = received.request, node.clock_ms(self.now_s)
        facts = NodeFacts(history=HISTORY, members=HOSTS, term=0)
        call = LeaseCall(request=request, sender=request.grant.holder, facts=facts, now_ms=now_ms)
        self.record.requested(node.host, request.grant, self.now_s)
        decision = node.agent.decide(call)
        answer: LeaseAnswer | None = decision.answer
        if decision.save is not None:
            node.agent.writing(decision.save, now_ms)
            if self.rng.random() < 0.1:
                node.agent.write_failed(decision)
                answer = None
            else:
                node.file = decision.save
                node.agent.written(decision.save)
                answer = node.agent.complete(decision, now_ms)
        if answer is not None and answer.reply == "ok":
            self.granted += 1
            until_s = self.now_s + node.agent.left_ms(now_ms) / 1000 / node.rate
            self.note(self.record.promised(node.host, request.grant, now_s=self.now_s, until_s=until_s))
        self.send(request.grant.holder, Answer(node.host, answer, received.serial, received.life))

    def answered(self, node: Node, answer: Answer) -> None:
        if node.renewal is None or node.renewal.lease_id != answer.life:
            return
        worker, now_ms = node.renewal.workers[answer.node], node.clock_ms(self.now_s)
        if answer.answer is None:
            effects = worker.failed(answer.serial, FailedCall.DISK_ERROR, "disk", now_ms=now_ms, settings=SETTINGS)
        else:
            effects = worker.answered(answer.serial, answer.answer, rtt_ms=1.0, now_ms=now_ms, settings=SETTINGS)
        self.carry_out(node, effects)

    def check_counted(self) -> None:
        """By the clock, as an effect would: no timer has to have fired."""
        for node in self.nodes.values():
            if node.renewal is None:
                continue
            now_ms = node.clock_ms(self.now_s)
            for host, worker in node.renewal.workers.items():
                if now_ms < worker.deadline_ms:
                    grant = LeaseGrant(node.host, node.renewal.lease_id, worker.grant_number)
                    self.note(self.record.counted(host, grant, self.now_s))


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 1 << 32), rates=st.lists(st.floats(0.85, 1.25), min_size=3, max_size=3))
def test_a_node_has_one_promise_and_the_leader_counts_only_what_is_honoured(seed: int, rates: list[float]) -> None:
    world = World(random.Random(seed), rates)
    world.run(120.0)
    assert not world.problems
    assert world.granted > 0


def test_the_check_notices_clocks_beyond_the_bound() -> None:
    """A node whose clock runs more than `period / (period - grace)` times as fast as the leader's."""

    def has_problem(seed: int) -> bool:
        world = World(random.Random(seed), [1.0, 1.7, 1.7])
        world.run(120.0)
        return bool(world.problems)

    assert any(has_problem(seed) for seed in range(40))


@pytest.mark.parametrize("rate", [1.49, 1.0])
def test_the_bound_itself_is_kept(rate: float) -> None:
    for seed in range(20):
        world = World(random.Random(seed), [1.0, rate, rate])
        world.run(60.0)
        assert not world.problems
