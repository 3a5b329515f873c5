"""Group 0 on one node: joins or creates the group, runs its Raft peer, follows its members, and notices its removal.

The parts: `formation.py` finds or creates the group, `control/raft/driver.py` keeps the log, `state_machine.py` holds
the store, `client.py` makes this node's calls, `voter_assignment.py` acts for the leader, `service.py` serves the
verbs.
"""

import asyncio
from dataclasses import dataclass, field

import msgspec

from ebla.control.group0.client import ClientIncarnation, Group0Client
from ebla.control.group0.formation import Formation, FormationConfig, FormationLimits, lost_folder_error, removed_error
from ebla.control.group0.join_state import JoinStage, JoinStateFile
from ebla.control.group0.state_machine import Group0StateMachine
from ebla.control.group0.transport import Group0Transport
from ebla.control.group0.voter_assignment import Alive, VoterAssigner
from ebla.control.raft.config import RaftConfig
from ebla.control.raft.driver import APPLY_BYTES_MAX, RaftDriver
from ebla.group0 import snapshot
from ebla.group0.change_feed import ChangeSet
from ebla.group0.members import MEMBERS_PREFIX, Member, MemberRole, member_key, peer_number
from ebla.group0.store import Group0Store, HistoryStart, KeyEntry
from ebla.model.errors import EblaError, Unavailable
from ebla.model.identity import Address, ClusterId, HistoryId, HostId
from ebla.options import DEFAULT_LIMITS
from ebla.ports.environment import Environment
from ebla.raft.effects import LogWrite
from ebla.raft.events import PeerReachable
from ebla.raft.messages import NO_PEER, HardState, Membership, PeerId, SnapshotMeta
from ebla.raft.options import RaftOptions as RaftOptions
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Group0Config:
    member: Member
    """This node, as a new member."""
    cluster: ClusterId
    cluster_name: str
    contacts: tuple[Address, ...]
    folder: str
    """Of this group only; the join state is a file beside it."""
    tick_ms: int = DEFAULT_LIMITS.raft_tick_ms
    election_ticks: int = 10
    snapshot_entries_max: int = 10_000
    snapshot_bytes_max: int = 64 * 1024 * 1024
    kept_entries: int = 1_000
    lost_leader_ms: int = 10_000
    """After this long without a leader, ask other members whether this node was removed."""
    formation: FormationLimits = field(default_factory=FormationLimits)


class Group0Node:
    """`run` until cancelled. It ends earlier only with an error, if this node must stop."""

    def __init__(self, environment: Environment, config: Group0Config, context: PeersContext, peers: Peers) -> None:
        self._environment = environment
        self.config = config
        self._context = context
        self._peers = peers
        self.join_state = JoinStateFile(environment.disk, f"{config.folder}-mark")
        self.formation = Formation(
            context,
            self.join_state,
            FormationConfig(
                member=config.member,
                cluster=config.cluster,
                cluster_name=config.cluster_name,
                contacts=config.contacts,
                limits=config.formation,
            ),
        )
        self._running: RunningGroup0 | None = None
        self.started = asyncio.Event()
        """Set once this node's Raft peer runs. It may still wait for its first state."""
        self.removed = asyncio.Event()

    @property
    def is_running(self) -> bool:
        return self._running is not None

    @property
    def running(self) -> "RunningGroup0":
        if self._running is None:
            raise Unavailable(f"this node is in no cluster yet: {self.formation.waits_for or 'it just started'}")
        return self._running

    def peers(self) -> tuple[Address, ...]:
        """Where the other nodes listen, sorted: the members, and the configured contacts that have not left."""
        members = () if self._running is None else tuple(self._running.store.members.values())
        present = {member.address for member in members if member.present}
        left = {member.address for member in members} - present
        return tuple(sorted((present | set(self.config.contacts)) - left - {self.config.member.address}))

    async def run(self, alive: Alive) -> None:
        config = self.config
        self._environment.disk.make_folder(config.folder)
        mark = await self.join_state.load()
        await self.join_state.save(msgspec.structs.replace(mark, incarnation=mark.incarnation + 1))
        known_members = await self.formation.join_or_create(self._create)
        running = await self._open(known_members)
        ticket = running.machine.watch(self._follow, MEMBERS_PREFIX)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(running.raft.run())
                tasks.create_task(running.client.run())
                tasks.create_task(running.voters.run(alive))
                tasks.create_task(self._watch_for_removal(running))
                self._running = running
                self.started.set()
                await self.removed.wait()
                await self.join_state.save(msgspec.structs.replace(self.join_state.mark, stage=JoinStage.REMOVED))
                raise removed_error(config.member)
        finally:
            running.machine.unwatch(ticket)
            self._running = None

    # ---- opening

    async def _create(self, history: HistoryId) -> int:
        """Creates the first state of a new group: this node as its only voter, and the cluster's identity."""
        config = self.config
        store = Group0Store((HistoryStart(history, 0),))
        store.index = 1
        founder = msgspec.structs.replace(config.member, role=MemberRole.VOTER)
        identity = ClusterIdentity(config.cluster, config.cluster_name, founder.host)
        first = ((member_key(founder.host), founder), (CLUSTER_KEY, identity))
        store.entries = {key: KeyEntry(msgspec.msgpack.encode(value), store.revision) for key, value in first}
        peer = PeerId(peer_number(founder.host))
        meta = SnapshotMeta(1, 1, Membership(voters=(peer,)))
        write = LogWrite(hard_state=HardState(1, NO_PEER, 1), entries=(), snapshot=meta, must_sync=True, answers=())
        raft, _, _ = self._assemble(history)
        log_id = await raft.begin(meta, snapshot.encode(store), write)
        self._context.report("group0.created", {"history": str(history), "cluster": config.cluster_name})
        return log_id

    async def _open(self, known_members: tuple[Member, ...]) -> "RunningGroup0":
        mark = self.join_state.mark
        raft, machine, transport = self._assemble(mark.history)
        await raft.open()
        if mark.stage is JoinStage.MEMBER and raft.log.log_id != mark.log_id:
            raise lost_folder_error(self.config.folder, mark)
        transport.learn((*known_members, *machine.store.members.values()))
        caller = ClientIncarnation(self.config.member.host, mark.incarnation)
        client = Group0Client(caller, machine, raft, self._peers, transport)
        voters = VoterAssigner(client, raft.core, lambda: machine.store.members)
        return RunningGroup0(raft=raft, machine=machine, transport=transport, client=client, voters=voters)

    def _assemble(self, history: HistoryId) -> tuple[RaftDriver[Group0Store], Group0StateMachine, Group0Transport]:
        config = self.config
        machine = Group0StateMachine(Group0Store((HistoryStart(history, 0),)))
        transport = Group0Transport(config.member, self._peers, machine)
        options = RaftOptions(
            peer=PeerId(peer_number(config.member.host)),
            tick_ms=config.tick_ms,
            election_ticks=config.election_ticks,
            forward_proposals=False,
            campaign_early_when_ahead=True,
            apply_bytes_max=APPLY_BYTES_MAX,
        )
        raft_config = RaftConfig(
            folder=config.folder,
            options=options,
            report=self._context.report,
            snapshot_entries_max=config.snapshot_entries_max,
            snapshot_bytes_max=config.snapshot_bytes_max,
            kept_entries=config.kept_entries,
            before_first_snapshot=self._save_membership,
        )
        return RaftDriver(self._environment, raft_config, machine, transport), machine, transport

    async def _save_membership(self, log_id: int) -> None:
        await self.join_state.save(msgspec.structs.replace(self.join_state.mark, stage=JoinStage.MEMBER, log_id=log_id))

    # ---- following the members

    def _follow(self, step: ChangeSet) -> None:
        for change in step.changes:
            if change.key.startswith(MEMBERS_PREFIX):
                member = self.running.machine.store.members[change.key]
                self.running.transport.learn((member,))
                if member.host == self.config.member.host and not member.present:
                    self.removed.set()

    def peer_connected(self, host: HostId, lane: Lane) -> None:
        """A peer that connects on the Raft lane has its log open and waits for appends."""
        if lane is Lane.RAFT and self._running is not None:
            self._running.raft.post(PeerReachable(PeerId(peer_number(host))))

    async def _watch_for_removal(self, running: "RunningGroup0") -> None:
        """A removed node is sent nothing more, so it may never see the entry that removed it."""
        silent_ms = 0
        pause_ms = self.config.lost_leader_ms // 10
        while True:
            await asyncio.sleep(pause_ms / 1000)
            silent_ms = silent_ms + pause_ms if running.raft.core.leader == NO_PEER else 0
            if silent_ms >= self.config.lost_leader_ms:
                silent_ms = 0
                await self._ask_members(running)

    async def _ask_members(self, running: "RunningGroup0") -> None:
        own = self.config.member.host
        for member in list(running.machine.store.members.values()):
            if member.host == own or not member.present:
                continue
            try:
                answer = await self._peers.call(member.host, GROUP0_MEMBERSHIP, MembershipRequest(own), 1_000)
            except EblaError:
                continue
            same_history = answer.revision.history == running.machine.store.revision.history
            if same_history and answer.role is MemberRole.REMOVED:
                self.removed.set()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningGroup0:
    """The parts of a node that is in group 0."""

    raft: RaftDriver[Group0Store]
    machine: Group0StateMachine
    transport: Group0Transport
    client: Group0Client
    voters: VoterAssigner

    @property
    def store(self) -> Group0Store:
        return self.machine.store

    def leader_host(self) -> HostId | None:
        leader = self.raft.core.leader
        return None if leader == NO_PEER else self.transport.host_of(leader)
