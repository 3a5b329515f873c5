"""A cluster of rows, a member that receives requests, and new nodes, for transcripts of the join handshake.

Messages are delivered, or lost, one by one. Hosts are letters; the attempts of `A` are `A1`, `A2`, one per start of its
process."""

from collections.abc import Callable
from dataclasses import dataclass

import msgspec
from tests.scenarios.leadership_harness import Names
from tests.scenarios.raft_harness.transcript import Command
from tests.unit.topology.world import FEATURES, Coordinator, World

from ebla.group0.join_admission import AdmissionView, admission_error, is_submitted, join_commands, learner_of
from ebla.group0.join_handshake import JoinHandshake, JoinPhase, SendRequest, restart_refusal
from ebla.group0.join_messages import JoinNodeQueryAnswer, JoinNodeRequest, JoinNodeResponse, JoinRequestStatus
from ebla.group0.members import Member, MemberRole, member_key
from ebla.model.errors import DeadlineExceeded, EblaError
from ebla.model.identity import Address, ClusterId, HistoryId, HostId, RequestId
from ebla.topology.apply.command import Rejection, apply_commands
from ebla.topology.commands import RejectNode, StartNodeRequest
from ebla.topology.request_queue import latest_join, queue_position
from ebla.topology.snapshot import Node
from ebla.topology.states import NodeState
from ebla.version import DATA_FORMAT

PORT = 7000
CONTACTS = (Address("127.0.0.1", PORT), Address("127.0.0.2", PORT))


@dataclass(slots=True, kw_only=True)
class NewNode:
    row: Node
    cluster: str = "ours"
    name: str = "ours"
    storage_format: int = DATA_FORMAT
    replaced: str = ""
    ignored: tuple[str, ...] = ()
    starts: int = 0
    accepted: str | None = None
    """The attempt, once its acceptance is durable."""
    handshake: JoinHandshake | None = None
    runs_raft: bool = False


class JoinCluster:
    def __init__(self) -> None:
        self.names = Names()
        self.world = World()
        self.members: dict[str, Member] = {}
        self.nodes: dict[str, NewNode] = {}
        self.leader = "M"
        self.out: list[str] = []
        self.shown: set[str] = set()
        """The classes of all errors, for the test that each is reached."""

    def run(self, command: Command) -> str:
        COMMANDS[command.name](self, command)
        printed, self.out = self.out, []
        return "".join(f"{line}\n" for line in printed)

    def say(self, text: object) -> None:
        self.out.append(self.names.short(text))

    def host(self, name: str) -> HostId:
        return HostId(self.names.id(name))

    def attempt(self, name: str) -> RequestId:
        return RequestId(self.names.id(name))

    def row(self, name: str, command: Command) -> Node:
        last = sum(map(ord, name)) - 64 if name.isupper() else 9
        return Node(
            host=self.host(name),
            datacenter="dc1",
            rack=command.option("rack", "r1"),
            shard_count=int(command.option("shards", "2")),
            ignore_msb=0,
            release_version="1.0",
            address=command.option("address", f"127.0.0.{last}"),
            num_tokens=int(command.option("num_tokens", "4")),
        )

    # ---- the members

    def create(self, command: Command) -> None:
        row = self.row("M", command)
        self.world.create(row)
        self.members[member_key(row.host)] = msgspec.structs.replace(
            learner_of(row, PORT, self.attempt("M1")), role=MemberRole.VOTER, join_id=None
        )

    def view(self) -> AdmissionView:
        return AdmissionView(
            cluster=ClusterId(self.names.id("ours")),
            cluster_name="ours",
            snapshot=self.world.snapshot,
            members=self.members,
            liveness=self.world.liveness,
        )

    def receive(self, node: NewNode, attempt: str) -> EblaError | None:
        request = JoinNodeRequest(
            attempt=self.attempt(attempt),
            cluster=ClusterId(self.names.id(node.cluster)),
            cluster_name=node.name,
            node=node.row,
            storage_format=node.storage_format,
            replaced=self.named(node.replaced),
            ignored=tuple(map(self.named, node.ignored)),
        )
        error = admission_error(self.view(), request)
        if error is not None:
            return error
        if is_submitted(self.world.snapshot, request):
            self.say(f"receiver: {attempt} is submitted already")
            return None
        applied = apply_commands(self.world.snapshot, join_commands(self.world.snapshot, request, self.world.now_ms))
        assert not isinstance(applied, Rejection), applied
        self.world.commit(applied)
        self.say(f"receiver: commits {attempt}")
        return None

    def named(self, name: str) -> str:
        """A host's letter as its id; what is no letter stays as it is."""
        return str(self.host(name)) if len(name) == 1 else name

    def die(self, command: Command) -> None:
        self.world.dead |= {self.host(name) for name in command.words}

    def member(self, command: Command) -> None:
        """A node of the cluster that has joined before."""
        row = self.row(command.words[0], command)
        self.world.ask_to_join(msgspec.structs.replace(row, supported_features=FEATURES))
        Coordinator(self.world).settle()
        attempt = self.attempt(f"{command.words[0]}1")
        self.members[member_key(row.host)] = learner_of(row, PORT, attempt)

    def lead(self, command: Command) -> None:
        self.leader = command.words[0]

    def open_requests(self, command: Command) -> None:
        for number in range(int(command.words[0])):
            row = msgspec.structs.replace(
                self.row("M", command), host=self.host(f"other{number}"), address=f"10.0.{number >> 8}.{number & 255}"
            )
            self.world.ask_to_join(row)

    def begin(self, command: Command) -> None:
        """The coordinator starts the request: the learner and its row in one change."""
        row = self.world.snapshot.node(self.host(command.words[0]))
        assert row.request is not None
        self.members[member_key(row.host)] = learner_of(row, PORT, row.request)
        self.world.do(StartNodeRequest(row.request, self.world.new_session()))

    def reject(self, command: Command) -> None:
        host, reason = self.host(command.words[0]), " ".join(command.words[1:])
        self.world.do(RejectNode(host, reason, self.world.now_ms))
        if (member := self.members.get(member_key(host))) is not None:
            self.members[member_key(host)] = msgspec.structs.replace(member, role=MemberRole.REMOVED)

    # ---- the new nodes

    def add(self, command: Command) -> None:
        name = command.words[0]
        self.nodes[name] = NewNode(
            row=self.row(name, command),
            cluster=command.option("cluster", "ours"),
            name=command.option("name", "ours"),
            storage_format=int(command.option("format", str(DATA_FORMAT))),
            replaced=command.option("replace", ""),
            ignored=tuple(filter(None, command.option("ignore", "").split(","))),
        )
        self.start(command)

    def start(self, command: Command) -> None:
        """A process of the node: it draws an attempt id, unless an earlier one was accepted."""
        name = command.words[0]
        node = self.nodes[name]
        node.starts += 1
        drawn = f"{name}{node.starts}"
        attempt = node.accepted or drawn
        node.handshake = JoinHandshake(self.attempt(attempt), is_accepted=node.accepted is not None)
        node.runs_raft = False
        if node.accepted is None:
            self.say(f"{name}: draws {drawn}")
            return
        refusal = restart_refusal(() if command.flag("alone") else (self.answer(name),))
        if refusal is not None:
            self.say(f"{name}: exits with status 1: {refusal}")
            return
        node.runs_raft = True
        self.say(f"{name}: starts Raft as {attempt}, sends no request")

    def request(self, command: Command) -> None:
        name = command.words[0]
        node = self.nodes[name]
        handshake = node.handshake
        assert handshake is not None
        step: SendRequest = handshake.next_request(CONTACTS)
        attempt, lost = f"{name}{node.starts}", command.option("lost", "")
        self.say(f"{name}: after {step.after_ms} ms requests {attempt} of {step.contact}")
        error: EblaError | None = DeadlineExceeded("no answer")
        if lost != "request":
            error = self.receive(node, attempt)
        if error is not None:
            self.show(error)
        if lost:
            error = DeadlineExceeded("no answer")
        if error is None:
            handshake.request_waits()
        else:
            handshake.request_failed(error)
        self.settle(name)

    def show(self, error: EblaError) -> None:
        self.shown.add(type(error).__name__)
        self.say(f"{type(error).__name__}: {error}")

    def respond(self, command: Command) -> None:
        name, attempt = command.words[:2]
        node = self.nodes[name]
        reason = " ".join(command.words[2:])
        response = JoinNodeResponse(attempt=self.attempt(attempt), rejection=reason)
        if not reason:
            history = HistoryId(self.names.id("history"))
            response = JoinNodeResponse(
                attempt=self.attempt(attempt), history=history, members=tuple(self.members.values())
            )
        assert node.handshake is not None
        decision = node.handshake.respond(response)
        what = f"{'rejects' if reason else 'accepts'} {attempt}"
        self.say(f"{self.leader} to {name}: {what}: {decision}")
        self.settle(name)

    def answer(self, name: str) -> JoinNodeQueryAnswer:
        snapshot, host = self.world.snapshot, self.host(name)
        row, found = snapshot.nodes.get(host), latest_join(snapshot, host)
        status = None
        if found is not None:
            position = queue_position(snapshot, found.id)
            waits_for = f"queued: position {position}" if position else ""
            status = JoinRequestStatus(
                attempt=found.id, outcome=found.outcome, position=position, waits_for=waits_for, error=found.error
            )
        state: NodeState | None = None if row is None else row.state
        cluster = ClusterId(self.names.id("ours"))
        return JoinNodeQueryAnswer(mode="group0", cluster=cluster, state=state, request=status)

    def query(self, command: Command) -> None:
        name = command.words[0]
        handshake = self.nodes[name].handshake
        assert handshake is not None
        wait = handshake.query_answered(self.answer(name))
        self.say(f"{name}: learns state={wait.state} position={wait.position} {wait.reason}".rstrip())
        self.settle(name)

    def settle(self, name: str) -> None:
        """What the process does after an event: persist an acceptance, start Raft, reply; or end."""
        node = self.nodes[name]
        handshake = node.handshake
        assert handshake is not None
        if handshake.phase is JoinPhase.ACCEPTED and not node.runs_raft:
            assert handshake.acceptance is not None
            node.accepted = self.names.short(handshake.attempt)
            node.runs_raft = True
            self.say(f"{name}: accepted: persists, starts Raft, replies")
        elif handshake.rejection is not None:
            self.say(f"{name}: exits with status 1: {handshake.rejection}")
            node.handshake = None

    def state(self, _command: Command) -> None:
        for name, node in self.nodes.items():
            row = self.world.snapshot.nodes.get(node.row.host)
            phase = "ended" if node.handshake is None else node.handshake.phase
            raft = "runs" if node.runs_raft else "off"
            self.say(f"{name}: {phase}, raft {raft}, row {'missing' if row is None else row.state}")


COMMANDS: dict[str, Callable[[JoinCluster, Command], None]] = {
    "create": JoinCluster.create,
    "lead": JoinCluster.lead,
    "open": JoinCluster.open_requests,
    "member": JoinCluster.member,
    "die": JoinCluster.die,
    "begin": JoinCluster.begin,
    "reject": JoinCluster.reject,
    "add": JoinCluster.add,
    "start": JoinCluster.start,
    "request": JoinCluster.request,
    "respond": JoinCluster.respond,
    "query": JoinCluster.query,
    "state": JoinCluster.state,
}
