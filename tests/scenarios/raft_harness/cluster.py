"""Peers, what is on its way between them, and the commands of interaction transcripts."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from tests.scenarios.raft_harness.describe import (
    CHANGE_KINDS,
    MESSAGE_NAMES,
    ROLE_NAMES,
    describe_effects,
    describe_entries,
    describe_parcel,
    describe_progress,
    message_sender,
)
from tests.scenarios.raft_harness.node import Node
from tests.scenarios.raft_harness.parcels import APPEND_THREAD, APPLY_THREAD, Parcel, StorageAppend, StorageApply
from tests.scenarios.raft_harness.transcript import Command

from ebla.raft.effects import Effects
from ebla.raft.events import (
    Campaign,
    ForgetLeader,
    PeerUnreachable,
    Propose,
    RaftEvent,
    ReadIndex,
    SnapshotSent,
    TransferLeadership,
    WriteCompleted,
)
from ebla.raft.membership import MemberChange, MembershipChange, Transition, encode_change
from ebla.raft.messages import EntryKind, InstallSnapshot, Membership, Message, PeerId, SnapshotMeta
from ebla.raft.options import RaftOptions, ReadIndexMode
from ebla.raft.roles import Leader
from ebla.raft.state import Contradiction, StepOutcome, StepRefusal

T = TypeVar("T")

_UNBOUNDED = 2**62
_DROPPED = "raft proposal dropped"
_REFUSALS = {StepRefusal.UNKNOWN_PEER: "raft: cannot step as peer not found"}

_TRANSITIONS = {
    "auto": Transition.AUTO,
    "implicit": Transition.JOINT_IMPLICIT,
    "explicit": Transition.JOINT_EXPLICIT,
}


class Cluster:
    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.parcels: list[Parcel] = []
        self.is_quiet = False
        self._output: list[str] = []
        self._indent = ""

    # Running.

    def run(self, command: Command) -> str:
        self._output = []
        COMMANDS[command.name](self, command)
        return "".join(self._output)

    def _print(self, text: str) -> None:
        if not self.is_quiet:
            self._output.extend(f"{self._indent}{line}\n" for line in text.splitlines())

    def _indented(self, header: str, act: Callable[[T], object], subject: T) -> None:
        self._print(header)
        self._indent = "  "
        act(subject)
        self._indent = ""

    def _print_error(self, text: str) -> None:
        self._output.append(f"{text}\n")

    def _step(self, peer: PeerId, event: RaftEvent) -> StepOutcome:
        node = self.nodes[peer - 1]
        return node.core.step(event, node.now_ms)

    # Setting up.

    def add_nodes(self, command: Command) -> None:
        index = int(command.option("index", "0"))
        membership = Membership(voters=_peers(command, "voters"), learners=_peers(command, "learners"))
        snapshot = SnapshotMeta(index, 1, membership) if index else SnapshotMeta()
        for _ in range(int(command.words[0])):
            self.nodes.append(Node(_options(PeerId(len(self.nodes) + 1), command), snapshot))

    def log_level(self, command: Command) -> None:
        self.is_quiet = command.words[0] == "none"

    def set_timeout(self, command: Command) -> None:
        self.nodes[command.numbers()[0] - 1].core.state.election_timeout = int(command.option("timeout", "0"))

    # Events.

    def campaign(self, command: Command) -> None:
        self._step(PeerId(command.numbers()[0]), Campaign())

    def forget_leader(self, command: Command) -> None:
        self._step(PeerId(command.numbers()[0]), ForgetLeader())

    def tick_election(self, command: Command) -> None:
        node = self.nodes[command.numbers()[0] - 1]
        node.tick(node.options.election_ticks)

    def tick_heartbeat(self, command: Command) -> None:
        node = self.nodes[command.numbers()[0] - 1]
        node.tick(node.options.heartbeat_ticks)

    def propose(self, command: Command) -> None:
        payloads = (command.words[1].encode(),)
        self._propose(PeerId(int(command.words[0])), Propose(payloads))

    def propose_change(self, command: Command) -> None:
        words = " ".join(command.body).split()
        changes = tuple(MemberChange(CHANGE_KINDS[word[0]], PeerId(int(word[1:]))) for word in words)
        change = MembershipChange(changes, _TRANSITIONS[command.option("transition", "auto")])
        kind = EntryKind.MEMBER if command.flag("v1") else EntryKind.MEMBERS
        self._propose(PeerId(command.numbers()[0]), Propose((encode_change(change),), kind))

    def _propose(self, peer: PeerId, proposal: Propose) -> None:
        if self._step(peer, proposal) is not None:
            self._print_error(_DROPPED)

    def read_index(self, command: Command) -> None:
        refusal = self._step(PeerId(int(command.words[0])), ReadIndex(command.words[1].encode()))
        if isinstance(refusal, StepRefusal):
            self._print_error(refusal.value)

    def transfer_leadership(self, command: Command) -> None:
        self._step(PeerId(int(command.option("from", ""))), TransferLeadership(PeerId(int(command.option("to", "")))))

    def report_unreachable(self, command: Command) -> None:
        reporter, peer = command.numbers()
        self._step(PeerId(reporter), PeerUnreachable(PeerId(peer)))

    def report_snapshot(self, command: Command) -> None:
        reporter, peer = command.numbers()
        self._step(PeerId(reporter), SnapshotSent(PeerId(peer), delivered=not command.flag("failed")))

    def compact(self, command: Command) -> None:
        number, index = command.numbers()
        self.nodes[number - 1].compact(index)
        self._print_log(self.nodes[number - 1])

    def send_snapshot(self, command: Command) -> None:
        sender, to = (PeerId(number) for number in command.numbers())
        node = self.nodes[sender - 1]
        parcel = self._parcel(InstallSnapshot(sender=sender, to=to, term=node.core.term, snapshot=node.newest_snapshot))
        self.parcels.append(parcel)
        self._print(describe_parcel(parcel))

    def crash(self, command: Command) -> None:
        for number in command.numbers():
            self.nodes[number - 1].crash()

    def restore_copy(self, command: Command) -> None:
        """Starts a peer from a copy of its disk that ends at an index."""
        node = self.nodes[int(command.words[0]) - 1]
        node.disk.truncate(int(command.option("index", "")))
        node.crash()

    # Delivering.

    def deliver(self, command: Command) -> None:
        kind = command.option("type", "")
        dropped = [int(number) for number in command.options.get("drop", ())]
        count = sum(self._deliver(PeerId(number), kind) for number in command.numbers())
        count += sum(self._deliver(PeerId(number), kind, drop=True) for number in dropped)
        if not count:
            self._print("no messages")

    def _is_for(self, parcel: Parcel, peer: PeerId, kind: str, *, drop: bool) -> bool:
        return (
            parcel.to == peer
            and not (drop and parcel.is_local)
            and (not kind or MESSAGE_NAMES[type(parcel.content)] == kind)
        )

    def _deliver(self, peer: PeerId, kind: str = "", *, drop: bool = False) -> int:
        chosen = [parcel for parcel in self.parcels if self._is_for(parcel, peer, kind, drop=drop)]
        self.parcels = [parcel for parcel in self.parcels if not self._is_for(parcel, peer, kind, drop=drop)]
        for parcel in chosen:
            self._print(("dropped: " if drop else "") + describe_parcel(parcel))
            if not drop:
                assert not isinstance(parcel.content, StorageAppend | StorageApply)
                outcome = self._step(peer, parcel.content)
                if isinstance(outcome, Contradiction):
                    self._print(f"{peer} must stop: {outcome}")
                elif outcome in _REFUSALS:
                    self._print(_REFUSALS[outcome])
        return len(chosen)

    # Effects.

    def process_ready(self, command: Command) -> None:
        self._each(command, "handling Ready", self._process_ready)

    def process_append_thread(self, command: Command) -> None:
        self._each(command, "processing append thread", self._process_append)

    def process_apply_thread(self, command: Command) -> None:
        self._each(command, "processing apply thread", self._process_apply)

    def _each(self, command: Command, doing: str, act: Callable[[Node], None]) -> None:
        numbers = command.numbers()
        for number in numbers:
            node = self.nodes[number - 1]
            if len(numbers) == 1:
                act(node)
            else:
                self._indented(f"> {number} {doing}", act, node)

    def _parcel(self, message: Message) -> Parcel:
        return Parcel(sender=message_sender(message), to=message.to, content=message, receiver=str(message.to))

    def _answer(self, answer: Message | WriteCompleted) -> Parcel:
        if isinstance(answer, WriteCompleted):
            return Parcel(sender=APPEND_THREAD, to=answer.to, content=answer, receiver=str(answer.to))
        return self._parcel(answer)

    def _process_ready(self, node: Node) -> None:
        effects = node.core.take()
        if node.options.apply_unstable:
            self._finish_now(node, effects)
        else:
            self._hand_to_threads(node, effects)

    def _finish_now(self, node: Node, effects: Effects) -> None:
        """Write, apply, send, and tell the core, before anything else happens."""
        peer, write = node.core.peer, effects.write
        answers = write.answers if write is not None else ()
        sent = [self._parcel(message) for message in effects.messages]
        sent += [self._answer(answer) for answer in answers if answer.to != peer]
        self._print(describe_effects(effects, sent))
        if write is not None:
            node.disk.write(write)
        if effects.apply is not None:
            node.apply(effects.apply.entries)
        self.parcels += sent
        for answer in answers:
            if answer.to == peer:
                self._step(peer, answer)
        if effects.apply is not None:
            self._step(peer, effects.apply.answer)

    def _hand_to_threads(self, node: Node, effects: Effects) -> None:
        me = str(node.core.peer)
        sent = [self._parcel(message) for message in effects.messages]
        work: list[Parcel] = []
        if effects.write is not None:
            responses = tuple(self._answer(answer) for answer in effects.write.answers)
            parcel = Parcel(
                sender=me,
                to=PeerId(0),
                content=StorageAppend(effects.write),
                receiver=APPEND_THREAD,
                responses=responses,
            )
            node.append_work.append(parcel)
            work.append(parcel)
        if effects.apply is not None:
            answer = Parcel(
                sender=APPLY_THREAD,
                to=node.core.peer,
                content=effects.apply.answer,
                receiver=me,
                entries=effects.apply.entries,
            )
            parcel = Parcel(
                sender=me, to=PeerId(0), content=StorageApply(effects.apply), receiver=APPLY_THREAD, responses=(answer,)
            )
            node.apply_work.append(parcel)
            work.append(parcel)
        self._print(describe_effects(effects, sent + work))
        self.parcels += sent

    def _process_append(self, node: Node) -> None:
        if not node.append_work:
            self._print("no append work to perform")
            return
        parcel = node.append_work.pop(0)
        assert isinstance(parcel.content, StorageAppend)
        self._print_work(parcel)
        node.disk.write(parcel.content.write)
        self._print_responses(parcel)

    def _process_apply(self, node: Node) -> None:
        if not node.apply_work:
            self._print("no apply work to perform")
            return
        parcel = node.apply_work.pop(0)
        self._print_work(parcel)
        assert isinstance(parcel.content, StorageApply)
        node.apply(parcel.content.entries)
        self._print_responses(parcel)

    def _print_work(self, parcel: Parcel) -> None:
        bare = Parcel(sender=parcel.sender, to=parcel.to, content=parcel.content, receiver=parcel.receiver)
        self._print(f"Processing:\n{describe_parcel(bare)}")

    def _print_responses(self, parcel: Parcel) -> None:
        self._print("Responses:")
        for response in parcel.responses:
            self._print(describe_parcel(response))
        self.parcels += parcel.responses

    def stabilize(self, command: Command) -> None:
        """Everything that can happen on these peers happens, round by round, until nothing is left."""
        was_quiet = self.is_quiet
        if "log-level" in command.options:
            self.is_quiet = command.option("log-level", "") == "none"
        chosen = [self.nodes[number - 1] for number in command.numbers()] or self.nodes
        while self._stabilize_once(chosen):
            pass
        self.is_quiet = was_quiet

    def _stabilize_once(self, nodes: Sequence[Node]) -> bool:
        busy = False
        for node in nodes:
            if node.core.has_effects:
                busy = True
                self._indented(f"> {node.core.peer} handling Ready", self._process_ready, node)
        for node in nodes:
            peer = node.core.peer
            if any(parcel.to == peer for parcel in self.parcels):
                busy = True
                self._indented(f"> {peer} receiving messages", self._deliver, peer)
        for node in nodes:
            if node.append_work:
                busy = True
                self._indented(f"> {node.core.peer} processing append thread", self._append_all, node)
        for node in nodes:
            if node.apply_work:
                busy = True
                self._indented(f"> {node.core.peer} processing apply thread", self._apply_all, node)
        return busy

    def _append_all(self, node: Node) -> None:
        while node.append_work:
            self._process_append(node)

    def _apply_all(self, node: Node) -> None:
        while node.apply_work:
            self._process_apply(node)

    # Looking.

    def print_log(self, command: Command) -> None:
        self._print_log(self.nodes[command.numbers()[0] - 1])

    def _print_log(self, node: Node) -> None:
        disk = node.disk
        if disk.entries:
            self._print(describe_entries(disk.entries))
        else:
            self._print(f"log is empty: first index={disk.base_index + 1}, last index={disk.last_index}")

    def print_states(self, _command: Command) -> None:
        for node in self.nodes:
            core = node.core
            kind = "Voter" if core.membership.is_voter(core.peer) else "Non-Voter"
            self._print(f"{core.peer}: {ROLE_NAMES[type(core.role)]} ({kind}) Term:{core.term} Lead:{core.leader}")

    def print_status(self, command: Command) -> None:
        role = self.nodes[command.numbers()[0] - 1].core.role
        if isinstance(role, Leader):
            for peer, progress in role.progress.items():
                self._print(f"{peer}: {describe_progress(progress)}")


def _peers(command: Command, name: str) -> tuple[PeerId, ...]:
    return tuple(PeerId(int(number)) for number in command.options.get(name, ()))


def _options(peer: PeerId, command: Command) -> RaftOptions:
    lease = command.option("read-only", "safe").startswith("lease")
    return RaftOptions(
        peer=peer,
        election_ticks=3,
        heartbeat_ticks=1,
        check_quorum=command.flag("checkquorum"),
        pre_vote=command.flag("prevote"),
        read_mode=ReadIndexMode.LEASE if lease else ReadIndexMode.SAFE,
        validate_changes=not command.flag("disable-conf-change-validation"),
        step_down_on_removal=command.flag("step-down-on-removal"),
        apply_unstable=not command.flag("async-storage-writes"),
        message_bytes_max=int(command.option("message-bytes", str(_UNBOUNDED))),
        inflight_messages_max=int(command.option("inflight", str(_UNBOUNDED))),
        inflight_bytes_max=int(command.option("inflight-bytes", "0")),
        apply_bytes_max=int(command.option("max-committed-size-per-ready", str(_UNBOUNDED))),
        uncommitted_bytes_max=int(command.option("uncommitted-bytes", str(_UNBOUNDED))),
    )


def _nothing(_cluster: Cluster, _command: Command) -> None:
    """A place for a debugger to stop."""


COMMANDS: dict[str, Callable[[Cluster, Command], None]] = {
    "_breakpoint": _nothing,
    "add-nodes": Cluster.add_nodes,
    "campaign": Cluster.campaign,
    "compact": Cluster.compact,
    "crash": Cluster.crash,
    "restore-copy": Cluster.restore_copy,
    "deliver-msgs": Cluster.deliver,
    "forget-leader": Cluster.forget_leader,
    "log-level": Cluster.log_level,
    "process-append-thread": Cluster.process_append_thread,
    "process-apply-thread": Cluster.process_apply_thread,
    "process-ready": Cluster.process_ready,
    "propose": Cluster.propose,
    "propose-conf-change": Cluster.propose_change,
    "raft-log": Cluster.print_log,
    "raft-state": Cluster.print_states,
    "read-index": Cluster.read_index,
    "report-snapshot": Cluster.report_snapshot,
    "report-unreachable": Cluster.report_unreachable,
    "send-snapshot": Cluster.send_snapshot,
    "set-randomized-election-timeout": Cluster.set_timeout,
    "stabilize": Cluster.stabilize,
    "status": Cluster.print_status,
    "tick-election": Cluster.tick_election,
    "tick-heartbeat": Cluster.tick_heartbeat,
    "transfer-leadership": Cluster.transfer_leadership,
}
