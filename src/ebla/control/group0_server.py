"""Group 0 on one node: gets the node in, runs its Raft peer, follows its members, and notices when it is out.

The parts: `formation.py` finds or founds the group, `raft_server.py` keeps the log, `group0_machine.py` holds the
store, `group0_calls.py` asks on behalf of this node, `voter_choice.py` acts for the leader, `group0_doors.py` answers.
"""

import asyncio
from dataclasses import dataclass, field

import msgspec

from ebla.control.formation import Formation, FormationLimits, FormationSetup, lost_folder_error, removed_error
from ebla.control.group0_calls import Caller, Group0Calls
from ebla.control.group0_machine import Group0Machine
from ebla.control.group0_mark import MarkFile, Stage
from ebla.control.group0_wire import Group0Wire
from ebla.control.raft_server import APPLY_BYTES_MAX, RaftServer, RaftSetup
from ebla.control.voter_choice import Alive, VoterChoice
from ebla.group0 import snapshot
from ebla.group0.feed import Step
from ebla.group0.history import HistoryStart
from ebla.group0.members import Member, Role, peer_number
from ebla.group0.membership import MEMBERS_PREFIX, member_key
from ebla.group0.store import Entry, Store
from ebla.model.errors import EblaError, Unavailable
from ebla.model.identity import Address, ClusterId, HistoryId, HostId
from ebla.ports.surroundings import Surroundings
from ebla.raft.effects import Write
from ebla.raft.events import PeerReachable
from ebla.raft.messages import NOBODY, HardState, Membership, PeerId, SnapshotMeta
from ebla.raft.options import Options as RaftOptions
from ebla.wire.frames import Lane
from ebla.wire.group0_messages import MembershipRequest
from ebla.wire.peers import Peers, PeersContext
from ebla.wire.verbs import GROUP0_MEMBERSHIP

CLUSTER_KEY = "cluster/identity"


class ClusterIdentity(msgspec.Struct, frozen=True, array_like=True):
    """Stored under `cluster/identity` when the group is created."""

    cluster: ClusterId
    name: str
    created_by: HostId


@dataclass(frozen=True, slots=True)
class Group0Setup:
    member: Member
    """Ourselves, in the role of a newcomer."""
    cluster: ClusterId
    cluster_name: str
    contacts: tuple[Address, ...]
    folder: str
    """Of this group alone; the mark stands beside it."""
    tick_ms: int = 100
    election_ticks: int = 10
    snapshot_entries_max: int = 10_000
    snapshot_bytes_max: int = 64 * 1024 * 1024
    kept_entries: int = 1_000
    lost_leader_ms: int = 10_000
    """Without a leader for this long, ask whether we are still a member."""
    formation: FormationLimits = field(default_factory=FormationLimits)


class Group0Server:
    """`run` until cancelled; it ends by itself, with an error that says why, only where this node must stop."""

    def __init__(self, surroundings: Surroundings, setup: Group0Setup, context: PeersContext, peers: Peers) -> None:
        self._surroundings = surroundings
        self.setup = setup
        self._context = context
        self._peers = peers
        self.marks = MarkFile(surroundings.disk, f"{setup.folder}-mark")
        self.formation = Formation(
            context,
            self.marks,
            FormationSetup(setup.member, setup.cluster, setup.cluster_name, setup.contacts, setup.formation),
        )
        self._running: Running | None = None
        self.started = asyncio.Event()
        """Set once this node's Raft peer runs. It may still wait for its first state."""
        self.removed = asyncio.Event()

    @property
    def is_running(self) -> bool:
        return self._running is not None

    @property
    def running(self) -> "Running":
        if self._running is None:
            raise Unavailable(f"this node is in no cluster yet: {self.formation.waits_for or 'it just started'}")
        return self._running

    def peers(self) -> tuple[Address, ...]:
        """Where the other nodes listen, sorted: the members, and whom the options name and who has not left."""
        members = () if self._running is None else tuple(self._running.store.members.values())
        present = {member.address for member in members if member.present}
        left = {member.address for member in members} - present
        return tuple(sorted((present | set(self.setup.contacts)) - left - {self.setup.member.address}))

    async def run(self, alive: Alive) -> None:
        setup = self.setup
        self._surroundings.disk.make_folder(setup.folder)
        mark = await self.marks.load()
        await self.marks.save(msgspec.structs.replace(mark, incarnation=mark.incarnation + 1))
        taken_in_by = await self.formation.settle(self._begin)
        running = await self._open(taken_in_by)
        ticket = running.machine.watch(self._follow, MEMBERS_PREFIX)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(running.raft.run())
                tasks.create_task(running.calls.run())
                tasks.create_task(running.voters.run(alive))
                tasks.create_task(self._ask_whether_removed(running))
                self._running = running
                self.started.set()
                await self.removed.wait()
                await self.marks.save(msgspec.structs.replace(self.marks.mark, stage=Stage.REMOVED))
                raise removed_error(setup.member)
        finally:
            running.machine.unwatch(ticket)
            self._running = None

    # ---- opening

    async def _begin(self, history: HistoryId) -> int:
        """The first state of a new group: ourselves as its only voter, and the cluster's name."""
        setup = self.setup
        store = Store((HistoryStart(history, 0),))
        store.index = 1
        founder = msgspec.structs.replace(setup.member, role=Role.VOTER)
        identity = ClusterIdentity(setup.cluster, setup.cluster_name, founder.host)
        first = ((member_key(founder.host), founder), (CLUSTER_KEY, identity))
        store.entries = {key: Entry(msgspec.msgpack.encode(value), store.revision) for key, value in first}
        peer = PeerId(peer_number(founder.host))
        meta = SnapshotMeta(1, 1, Membership(voters=(peer,)))
        write = Write(HardState(1, NOBODY, 1), (), meta, must_sync=True, answers=())
        raft, _, _ = self._assemble(history)
        log_id = await raft.begin(meta, snapshot.encode(store), write)
        self._context.report("group0.created", {"history": str(history), "cluster": setup.cluster_name})
        return log_id

    async def _open(self, taken_in_by: tuple[Member, ...]) -> "Running":
        mark = self.marks.mark
        raft, machine, wire = self._assemble(mark.history)
        await raft.open()
        if mark.stage is Stage.MEMBER and raft.log_id != mark.log_id:
            raise lost_folder_error(self.setup.folder, mark)
        wire.learn((*taken_in_by, *machine.store.members.values()))
        caller = Caller(self.setup.member.host, mark.incarnation)
        calls = Group0Calls(caller, machine, raft, (self._peers, wire))
        voters = VoterChoice(calls, raft.core, lambda: machine.store.members)
        return Running(raft, machine, wire, calls, voters)

    def _assemble(self, history: HistoryId) -> tuple[RaftServer[Store], Group0Machine, Group0Wire]:
        setup = self.setup
        machine = Group0Machine(Store((HistoryStart(history, 0),)))
        wire = Group0Wire(setup.member, self._peers, machine)
        options = RaftOptions(
            peer=PeerId(peer_number(setup.member.host)),
            tick_ms=setup.tick_ms,
            election_ticks=setup.election_ticks,
            forward_proposals=False,
            stands_soon_when_ahead=True,
            apply_bytes_max=APPLY_BYTES_MAX,
        )
        raft_setup = RaftSetup(
            setup.folder,
            options,
            self._context.report,
            snapshot_entries_max=setup.snapshot_entries_max,
            snapshot_bytes_max=setup.snapshot_bytes_max,
            kept_entries=setup.kept_entries,
            before_first_state=self._becomes_member,
        )
        return RaftServer(self._surroundings, raft_setup, machine, wire), machine, wire

    async def _becomes_member(self, log_id: int) -> None:
        await self.marks.save(msgspec.structs.replace(self.marks.mark, stage=Stage.MEMBER, log_id=log_id))

    # ---- following the members

    def _follow(self, step: Step) -> None:
        for change in step.changes:
            if change.key.startswith(MEMBERS_PREFIX):
                member = self.running.machine.store.members[change.key]
                self.running.wire.learn((member,))
                if member.host == self.setup.member.host and not member.present:
                    self.removed.set()

    def peer_came(self, host: HostId, lane: Lane) -> None:
        """A peer that greets on Raft's own lane has its log open and waits for what we have."""
        if lane is Lane.RAFT and self._running is not None:
            self._running.raft.post(PeerReachable(PeerId(peer_number(host))))

    async def _ask_whether_removed(self, running: "Running") -> None:
        """A removed node is sent nothing any more, so it may never see the entry that removed it."""
        silent_ms = 0
        pause_ms = self.setup.lost_leader_ms // 10
        while True:
            await asyncio.sleep(pause_ms / 1000)
            silent_ms = silent_ms + pause_ms if running.raft.core.leader == NOBODY else 0
            if silent_ms >= self.setup.lost_leader_ms:
                silent_ms = 0
                await self._ask_members(running)

    async def _ask_members(self, running: "Running") -> None:
        own = self.setup.member.host
        for member in list(running.machine.store.members.values()):
            if member.host == own or not member.present:
                continue
            try:
                answer = await self._peers.call(member.host, GROUP0_MEMBERSHIP, MembershipRequest(own), 1_000)
            except EblaError:
                continue
            same_history = answer.revision.history == running.machine.store.revision.history
            if same_history and answer.role is Role.REMOVED:
                self.removed.set()


@dataclass(frozen=True, slots=True)
class Running:
    """The parts of a node that is in group 0."""

    raft: RaftServer[Store]
    machine: Group0Machine
    wire: Group0Wire
    calls: Group0Calls
    voters: VoterChoice

    @property
    def store(self) -> Store:
        return self.machine.store

    def leader_host(self) -> HostId | None:
        leader = self.raft.core.leader
        return None if leader == NOBODY else self.wire.host_of(leader)
