"""One node on virtual time for transcripts of leases and activities: its agent, its registry and, once it leads, its
renewal. Hosts and lease ids are one letter or word each; `A` is the node itself."""

import uuid
from collections.abc import Callable, Sequence

from tests.scenarios.raft_harness.transcript import Command

from ebla.leadership.activities import (
    Activity,
    ActivityEffect,
    ActivityEnded,
    ActivityRegistry,
    ActivitySpec,
    CancelActivity,
    LeadershipView,
    QuorumSwitched,
    RefuseActivity,
    StartActivity,
)
from ebla.leadership.core import LeadershipCore, RaftFacts
from ebla.leadership.lease_agent import DAMAGED_FILE, LeaseAgent, LeaseCall, LeaseDecision, NodeFacts, rule_for
from ebla.leadership.lease_worker import (
    DropCall,
    FailedCall,
    LeaseAcquired,
    LeaseLost,
    StartCall,
    WorkerCall,
    WorkerEffect,
)
from ebla.leadership.messages import (
    ActivityToken,
    LeaseAnswer,
    LeaseAvailable,
    LeaseFileContent,
    LeaseGrant,
    LeaseId,
    LeaseReply,
    LeaseRequest,
    LeaseState,
    Order,
    SavedLease,
)
from ebla.leadership.quorum import FOLLOWER, AllOf, MajorityOf, Quorum
from ebla.leadership.renewal import LeaseRenewal
from ebla.model.errors import Stale
from ebla.model.identity import HistoryId, HostId
from ebla.model.lease_settings import LeaseSettings

NAMESPACE = uuid.UUID(int=0)


class Names:
    """Ids by name, and back in what is printed."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}

    def id(self, name: str) -> uuid.UUID:
        found = uuid.uuid5(NAMESPACE, name)
        self._names[str(found)] = name
        return found

    def short(self, text: object) -> str:
        words = str(text)
        for known, name in self._names.items():
            words = words.replace(known, name).replace(known[:8], name)
        return words


class LeadershipNode:
    def __init__(self) -> None:
        self.names = Names()
        self.now_ms = 0
        self.core = LeadershipCore(self.host("A"))
        self.file: LeaseFileContent | None = None
        self.members: tuple[str, ...] = ("A", "B", "C")
        self.voters: tuple[tuple[str, ...], ...] = (("A", "B", "C"),)
        self.history: str | None = "h"
        self.term = 1
        self.settings = LeaseSettings()
        self.calls: dict[str, WorkerCall] = {}
        self.automatic: dict[str, float] = {}
        self.activities: dict[str, Activity] = {}
        self.stuck: set[str] = set()
        self.pending: LeaseDecision | None = None
        self.rules: list[int] = []
        """The numbers of the rows that decided, for the test that every row is reached."""
        self.out: list[str] = []

    def run(self, command: Command) -> str:
        COMMANDS[command.name](self, command)
        if command.name not in WITHOUT_TIMERS:
            self.settle()
        printed, self.out = self.out, []
        return "".join(f"{line}\n" for line in printed)

    def say(self, text: object) -> None:
        self.out.append(f"{self.now_ms} {self.names.short(text)}")

    def host(self, name: str) -> HostId:
        return HostId(self.names.id(name))

    # ---- the step that a shell makes after every event

    @property
    def agent(self) -> LeaseAgent:
        return self.core.agent

    @property
    def registry(self) -> ActivityRegistry:
        return self.core.registry

    @property
    def renewal(self) -> LeaseRenewal | None:
        return self.core.renewal

    def raft(self) -> RaftFacts:
        voters = tuple(tuple(self.host(one) for one in voters) for voters in self.voters)
        return RaftFacts(leads=self.renewal is not None, term=self.term, voters=voters)

    def view(self) -> LeadershipView:
        return self.core.view(self.raft(), self.now_ms)

    def settle(self) -> None:
        while True:
            step = self.core.step(self.raft(), self.now_ms, self.settings)
            self.carry_out(step.workers)
            self.change(step.activities)
            for ended in step.ended:
                content = self.agent.content(self.now_ms)
                if content is not None and self.pending is None:
                    self.save(content)
                told = "".join(f", tells {host}" for host in ended.refused)
                self.say(f"ended {ended.promise.grant}{told}")
            if step.is_empty:
                return

    def carry_out(self, effects: Sequence[WorkerEffect]) -> None:
        for effect in effects:
            match effect:
                case StartCall(host, call):
                    name = self.names.short(host)
                    self.calls[name] = call
                    if name in self.automatic:
                        self.answer_automatically(name, call)
                    else:
                        self.say(f"call {name} n={call.grant_number} timeout={call.timeout_ms}")
                case DropCall(host):
                    if self.calls.pop(self.names.short(host), None):
                        self.say(f"drop call {host}")
                case LeaseAcquired(host):
                    assert self.renewal is not None
                    self.say(f"acquired {host} until {self.renewal.workers[host].deadline_ms}")
                case LeaseLost(host, why):
                    self.say(f"lost {host}: {why}")

    def answer_automatically(self, name: str, call: WorkerCall) -> None:
        """The node's own agent decides for `A`; the others grant."""
        answer = LeaseAnswer(reply=LeaseReply.OK)
        if name == "A":
            assert self.renewal is not None
            answer = self.ask_agent(self.request("A", self.renewal.lease_id, call.grant_number))
        self.answered(name, answer, self.automatic[name])

    def answered(self, name: str, answer: LeaseAnswer, rtt_ms: float) -> None:
        assert self.renewal is not None
        worker, call = self.renewal.workers[self.host(name)], self.calls.pop(name)
        self.carry_out(worker.answered(call.serial, answer, rtt_ms=rtt_ms, now_ms=self.now_ms, settings=self.settings))

    def change(self, changes: Sequence[ActivityEffect]) -> None:
        for change in changes:
            name = next(name for name, one in self.activities.items() if one.number == change.number)
            match change:
                case StartActivity():
                    self.say(f"start {name}")
                case RefuseActivity(_, error):
                    self.say(f"refuse {error.message} ({error.outcome})")
                case CancelActivity(_, reason):
                    self.say(f"cancel {name}: {reason}")
                    if name not in self.stuck:
                        self.registry.over(change.number, self.now_ms, failed=True)
                case QuorumSwitched(_, error):
                    self.say(f"switched {name}" if error is None else f"not switched {error.message}")

    def save(self, save: LeaseFileContent) -> None:
        self.agent.writing(save, self.now_ms)
        self.file = save
        self.agent.written(save)

    # ---- requests to the agent

    def request(self, holder: str, lease_id: LeaseId, number: int, **fields: int | str) -> LeaseRequest:
        return LeaseRequest(
            grant=LeaseGrant(self.host(holder), lease_id, number),
            period_ms=int(fields.get("period", self.settings.period_ms)),
            history=HistoryId(self.names.id(str(fields.get("history", "h")))),
            term=int(fields.get("term", self.term)),
        )

    def decide(self, request: LeaseRequest, sender: HostId) -> LeaseDecision:
        facts = NodeFacts(
            history=None if self.history is None else HistoryId(self.names.id(self.history)),
            members=[self.host(name) for name in self.members],
            term=self.term,
        )
        call = LeaseCall(request=request, sender=sender, facts=facts, now_ms=self.now_ms)
        self.agent.tick(self.now_ms)
        self.rules.append(rule_for(self.agent, call).number)
        return self.agent.decide(call)

    def ask_agent(self, request: LeaseRequest) -> LeaseAnswer:
        decision = self.decide(request, request.grant.holder)
        if decision.save is None:
            return decision.answer
        self.save(decision.save)
        return self.agent.complete(decision, self.now_ms)


def _do_members(node: LeadershipNode, command: Command) -> None:
    node.members = command.words
    if node.renewal is not None:
        node.carry_out(node.renewal.set_members([node.host(name) for name in node.members], node.now_ms))


def _do_voters(node: LeadershipNode, command: Command) -> None:
    """Two sets, divided by `+`, while the membership is joint."""
    sets = " ".join(command.words).split("+")
    node.voters = tuple(tuple(one.split()) for one in sets)


def _do_history(node: LeadershipNode, command: Command) -> None:
    node.history = command.words[0] if command.words else None


def _do_term(node: LeadershipNode, command: Command) -> None:
    node.term = int(command.words[0])


def _do_settings(node: LeadershipNode, command: Command) -> None:
    node.settings = LeaseSettings(**{name: int(value[0]) for name, value in command.options.items()})


def _do_advance(node: LeadershipNode, command: Command) -> None:
    """Every millisecond that something is due, and each save of the agent."""
    until_ms = node.now_ms + int(command.words[0])
    while True:
        wakes = (node.core.wake_ms(node.settings), node.agent.save_due_ms())
        due_ms = min((wake for wake in wakes if wake is not None and wake > node.now_ms), default=until_ms)
        node.now_ms = max(node.now_ms, min(due_ms, until_ms))
        save_ms = node.agent.save_due_ms()
        content = node.agent.content(node.now_ms)
        if save_ms is not None and content is not None and node.now_ms >= save_ms:
            node.save(content)
            if command.flag("saves"):
                node.say(f"saved left={content.left_ms}")
        node.settle()
        if due_ms >= until_ms:
            node.now_ms = until_ms
            return


def _do_pause(node: LeadershipNode, command: Command) -> None:
    """Time passes and no timer fires: a process under SIGSTOP."""
    node.now_ms += int(command.words[0])


def _do_acquire(node: LeadershipNode, command: Command) -> None:
    fields = {name: value[0] for name, value in command.options.items() if name in ("period", "history", "term")}
    holder, lease_id = command.words[0], LeaseId(node.names.id(command.words[1]))
    request = node.request(holder, lease_id, int(command.option("n", "1")), **fields)
    decision = node.decide(request, node.host(command.option("from", holder)))
    if decision.save is None:
        _say_answer(node, decision.answer, None)
    elif command.flag("slow"):
        node.agent.writing(decision.save, node.now_ms)
        node.pending = decision
    elif command.flag("fail"):
        node.agent.writing(decision.save, node.now_ms)
        node.agent.write_failed(decision)
        node.say("disk error")
    else:
        node.save(decision.save)
        _say_answer(node, node.agent.complete(decision, node.now_ms), decision.save)


def _do_write_done(node: LeadershipNode, _command: Command) -> None:
    decision, node.pending = node.pending, None
    assert decision is not None
    assert decision.save is not None
    node.save(decision.save)
    _say_answer(node, node.agent.complete(decision, node.now_ms), decision.save)
    content = node.agent.content(node.now_ms)  # the write of an end waited for this one
    if content is not None:
        node.save(content)


def _say_answer(node: LeadershipNode, answer: LeaseAnswer, save: SavedLease | None) -> None:
    parts = [f"[{node.rules[-1]}] {answer.reply}"]
    if answer.detail:
        parts.append(answer.detail)
    if answer.reply is LeaseReply.ALREADY_ACQUIRED:
        holder = "nobody knows whose" if answer.current is None else f"{answer.current.holder} {answer.current}"
        parts.append(f"{answer.state} {holder} left={answer.left_ms}")
    if answer.running:
        parts.append(f"waits for {', '.join(answer.running)}")
    if answer.term:
        parts.append(f"newest {answer.term}")
    if save is not None:
        parts.append(f"written left={save.left_ms}")
    node.say("; ".join(parts))


def _do_abolish(node: LeadershipNode, command: Command) -> None:
    node.agent.abolish(LeaseId(node.names.id(command.words[0])), node.now_ms)


def _do_restart(node: LeadershipNode, command: Command) -> None:
    """`clean`: the time left is saved first. The boot clock starts at 0, as after a power loss."""
    content = node.agent.content(node.now_ms)
    if "clean" in command.words and content is not None:
        node.file = content
    node.now_ms = 0
    node.core, node.calls, node.activities = LeadershipCore(node.host("A")), {}, {}
    if "damaged" in command.words:
        node.file = DAMAGED_FILE
    node.agent.start(node.file, node.host("A"), node.now_ms)
    if node.agent.dropped is not None:
        node.say(f"dropped {node.agent.dropped}")
    _do_state(node, command)


def _do_state(node: LeadershipNode, _command: Command) -> None:
    content = node.agent.content(node.now_ms)
    lease = f" {content.grant.holder} {content.grant}" if isinstance(content, SavedLease) else ""
    kind = type(node.agent.state).__name__.removesuffix("Lease").lower()
    on_disk = "nothing" if node.file is None else f"{node.file.left_ms}"
    node.say(f"{kind}{lease} left={node.agent.left_ms(node.now_ms)} on disk={on_disk}")


def _do_lead(node: LeadershipNode, command: Command) -> None:
    node.core.renewal = LeaseRenewal(LeaseId(node.names.id(command.words[0])), node.term)
    node.carry_out(node.core.renewal.set_members([node.host(name) for name in node.members], node.now_ms))


def _do_step_down(node: LeadershipNode, _command: Command) -> None:
    node.core.renewal, node.calls = None, {}


def _do_renewal_dies(node: LeadershipNode, command: Command) -> None:
    node.change(node.registry.renewal_died(node.now_ms))
    _do_lead(node, command)


def _do_auto(node: LeadershipNode, command: Command) -> None:
    node.automatic = dict.fromkeys(command.words, float(command.option("rtt", "1")))


def _do_answer(node: LeadershipNode, command: Command) -> None:
    name, reply = command.words
    current = None
    if "by" in command.options:
        holder, lease, number = command.options["by"]
        current = LeaseGrant(node.host(holder), LeaseId(node.names.id(lease)), int(number))
    answer = LeaseAnswer(
        reply=LeaseReply(reply),
        current=current,
        state=LeaseState.ACTIVE if current else LeaseState.NONE,
        left_ms=int(command.option("left", "0")),
    )
    node.answered(name, answer, float(command.option("rtt", "1")))


def _do_fail_call(node: LeadershipNode, command: Command) -> None:
    assert node.renewal is not None
    name, result = command.words
    worker, call = node.renewal.workers[node.host(name)], node.calls.pop(name)
    result_kind = FailedCall(result)
    node.carry_out(worker.failed(call.serial, result_kind, result, now_ms=node.now_ms, settings=node.settings))


def _do_late_answer(node: LeadershipNode, command: Command) -> None:
    """The answer to the call with this serial, which the worker does not wait for any more."""
    assert node.renewal is not None
    worker = node.renewal.workers[node.host(command.words[0])]
    answer = LeaseAnswer(reply=LeaseReply.OK)
    serial = int(command.words[1])
    node.carry_out(worker.answered(serial, answer, rtt_ms=1.0, now_ms=node.now_ms, settings=node.settings))


def _do_available(node: LeadershipNode, command: Command) -> None:
    assert node.renewal is not None
    host, lease, number = command.words
    notice = LeaseAvailable(LeaseId(node.names.id(lease)), int(number))
    node.renewal.workers[node.host(host)].available(notice, node.now_ms)


def _do_up(node: LeadershipNode, command: Command) -> None:
    assert node.renewal is not None
    node.carry_out(node.renewal.workers[node.host(command.words[0])].host_came_up(node.now_ms))


def _do_worker_fails(node: LeadershipNode, command: Command) -> None:
    assert node.renewal is not None
    node.carry_out(node.renewal.worker_failed(node.host(command.words[0]), "bug", node.now_ms))


def _do_run(node: LeadershipNode, command: Command) -> None:
    name = command.words[0]
    parent = node.activities[command.option("parent", "")] if "parent" in command.options else None
    spec = ActivitySpec(
        name=name,
        domain=command.option("domain", parent.domain if parent else "d"),
        quorum=_quorum(node, command),
        wait_ms=int(command.option("wait", "15000")),
        unsafe=command.flag("unsafe"),
        reap_ms=int(command.option("reap", "0")),
    )
    if command.flag("stuck"):
        node.stuck.add(name)
    node.activities[name] = node.registry.submit(spec, node.view(), parent)


def _quorum(node: LeadershipNode, command: Command) -> Quorum:
    parts: list[AllOf | MajorityOf] = []
    for kind, words in (("all", AllOf), ("majority", MajorityOf)):
        if kind in command.words:
            parts.append(words())
        if kind in command.options:
            parts.append(words(tuple(node.host(name) for name in command.options[kind])))
    return tuple(parts) or FOLLOWER


def _do_order(node: LeadershipNode, command: Command) -> None:
    name = command.words[0]
    lease_id = LeaseId(node.names.id(command.words[1]))
    order = Order(ActivityToken(lease_id=lease_id, domain="d", path=("purge",)), int(command.option("n", "1")))
    spec = ActivitySpec(name=name, domain="d", quorum=FOLLOWER, wait_ms=0)
    if command.flag("stuck"):
        node.stuck.add(name)
    try:
        node.activities[name] = node.registry.submit_order(order, spec, node.view())
    except Stale as error:
        node.say(f"stale: {error.message} ({error.outcome})")


def _do_finish(node: LeadershipNode, command: Command) -> None:
    for name in command.words:
        node.registry.over(node.activities[name].number, node.now_ms, failed=False)


def _do_effect(node: LeadershipNode, command: Command) -> None:
    """Before any timer: the shell checks the clock in the same turn."""
    try:
        node.registry.check_effect(node.activities[command.words[0]].number, node.view())
        node.say("effect allowed")
    except ActivityEnded as error:
        node.say(f"effect refused: {error.reason} ({error.outcome})")


def _do_permit(node: LeadershipNode, command: Command) -> None:
    node.say(f"permit {node.registry.permit_ms(node.activities[command.words[0]].number, node.view())}")


def _do_switch(node: LeadershipNode, command: Command) -> None:
    number = node.activities[command.words[0]].number
    wait_ms = int(command.option("wait", "15000"))
    node.registry.switch_quorum(number, _quorum(node, command), node.view(), wait_ms)


def _do_overdue(node: LeadershipNode, _command: Command) -> None:
    overdue = node.registry.overdue(node.now_ms, node.settings.activity_stop_ms)
    node.say(f"overdue {', '.join(one.name for one in overdue) or 'nothing'}")


def _do_ended(node: LeadershipNode, _command: Command) -> None:
    for one in node.registry.ended:
        node.say(f"{one.name}: {one.reason}")


WITHOUT_TIMERS = ("pause", "effect", "permit")
"""After a pause of the process anything may run before the timers that are due."""

COMMANDS: dict[str, Callable[[LeadershipNode, Command], None]] = {
    "members": _do_members,
    "voters": _do_voters,
    "history": _do_history,
    "term": _do_term,
    "settings": _do_settings,
    "advance": _do_advance,
    "pause": _do_pause,
    "acquire": _do_acquire,
    "write-done": _do_write_done,
    "abolish": _do_abolish,
    "restart": _do_restart,
    "state": _do_state,
    "lead": _do_lead,
    "step-down": _do_step_down,
    "renewal-dies": _do_renewal_dies,
    "auto": _do_auto,
    "answer": _do_answer,
    "fail-call": _do_fail_call,
    "late-answer": _do_late_answer,
    "available": _do_available,
    "up": _do_up,
    "worker-fails": _do_worker_fails,
    "run": _do_run,
    "order": _do_order,
    "finish": _do_finish,
    "effect": _do_effect,
    "permit": _do_permit,
    "switch": _do_switch,
    "overdue": _do_overdue,
    "ended": _do_ended,
}
