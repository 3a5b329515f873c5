"""Group 0 on one node: joins or creates the group, runs its Raft peer, follows its members, and notices its removal.

The parts: `formation.py` finds or creates the group, `control/raft/driver.py` keeps the log, `state_machine.py` holds
the store, `client.py` makes this node's calls, `voter_assignment.py` acts for the leader, `service.py` serves the
verbs.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import aclosing
from dataclasses import dataclass

import msgspec

from ebla.control.fault_points import FaultPoint
from ebla.control.group0.client import Group0Client
from ebla.control.group0.formation import Formation, Group0Config, lost_folder_error, removed_error
from ebla.control.group0.join_state import JoinStage, JoinStateFile
from ebla.control.group0.member_features import FEATURES_ADVICE, keep_own_entry, missing_features
from ebla.control.group0.state_machine import Group0StateMachine
from ebla.control.group0.transport import Group0Transport
from ebla.control.group0.voter_assignment import Alive, RunsOperations, assign_voters
from ebla.control.raft.config import RaftConfig
from ebla.control.raft.driver import APPLY_BYTES_MAX, RaftDriver
from ebla.control.raft.storage import RaftStorage
from ebla.control.topology.committed_topology import topology_of
from ebla.group0 import snapshot
from ebla.group0.change_feed import ChangeSet
from ebla.group0.join_handshake import ResponseDecision, rejected
from ebla.group0.join_messages import JoinNodeResponse, JoinNodeResponseAnswer
from ebla.group0.members import Member, MemberRole, member_key, peer_number
from ebla.group0.start_record import (
    MustNotRun,
    OwnStart,
    StartDecision,
    StartRecord,
    confirmation,
    decide_start,
    start_key,
    start_refusal,
)
from ebla.group0.store import Group0Store, HistoryStart, KeyEntry
from ebla.model.errors import DeadlineExceeded, EblaError, Refused, Unavailable
from ebla.model.identity import Address, ClusterId, HistoryId, HostId, StartId
from ebla.model.stored_value import decode_stored
from ebla.model.transaction import MEMBERS_PREFIX
from ebla.ports.environment import Environment
from ebla.raft.effects import LogWrite
from ebla.raft.events import PeerReachable, TransferLeadership
from ebla.raft.membership import change_of
from ebla.raft.messages import NO_PEER, EntryKind, HardState, Membership, PeerId, SnapshotMeta
from ebla.raft.options import RaftOptions as RaftOptions
from ebla.raft.roles import Leader
from ebla.topology.keys import decode as decode_row
from ebla.topology.keys import node_key
from ebla.topology.request_queue import latest_join
from ebla.topology.snapshot import Node
from ebla.topology.states import JOINING_STATES
from ebla.wire.frames import Lane
from ebla.wire.group0_messages import MembershipRequest
from ebla.wire.peers import Peers, PeersContext
from ebla.wire.verbs import GROUP0_MEMBERSHIP

CLUSTER_KEY = "cluster/identity"
CONFIRM_MS = 2_000
CONFIRM_RETRY_MS = 100
TRANSFER_AGAIN_MS = 2_000


class ClusterIdentity(msgspec.Struct, frozen=True, array_like=True):
    """Stored under `cluster/identity` when the group is created."""

    cluster: ClusterId
    name: str
    created_by: HostId


class Group0Node:
    """`run` until cancelled. It ends earlier only with an error, if this node must stop."""

    def __init__(
        self,
        environment: Environment,
        config: Group0Config,
        context: PeersContext,
        peers: Peers,
        reach: Callable[[FaultPoint], Awaitable[None]],
    ) -> None:
        self._environment = environment
        self._reach = reach
        self.config = config
        self._context = context
        self._peers = peers
        self.join_state = JoinStateFile(environment.disk, f"{config.folder}-mark")
        self.formation = Formation(context, self.join_state, config)
        self._running: RunningGroup0 | None = None
        self._start = StartId(environment.rng.uuid())
        self.opened = asyncio.Event()
        """Set once the node has its own state of group 0, which may be old."""
        self.members_known = asyncio.Event()
        """Set once it has, or is known to have none: a member that just started must not look like a cluster of one."""
        self.confirmed = asyncio.Event()
        """Set once group 0 knows this start: from now on the node may serve, and act for the cluster."""
        self.waits_for_start = ""
        """For people: what the confirmation waits for."""
        self._must_end = asyncio.Event()
        self._other_process: MustNotRun | None = None
        self.removed = False

    @property
    def is_running(self) -> bool:
        return self._running is not None

    @property
    def leads(self) -> bool:
        """Whether this node leads, and may act for the cluster."""
        return self._running is not None and self.confirmed.is_set() and self._running.raft.is_leader

    @property
    def waits_for(self) -> str:
        return self.formation.waits_for or self.waits_for_start

    @property
    def running(self) -> "RunningGroup0":
        if self._running is None:
            raise Unavailable(f"this node is in no cluster yet: {self.formation.waits_for or 'it just started'}")
        return self._running

    def peers(self) -> tuple[Address, ...]:
        """Where the other nodes listen, sorted: the members, and the configured contacts that have not left."""
        members = () if self._running is None else tuple(self._running.store.members.values())
        present = {member.address for member in members if member.listens}
        left = {member.address for member in members} - present
        return tuple(sorted((present | set(self.config.contacts)) - left - {self.config.member.address}))

    async def run(self, alive: Alive, operations: RunsOperations) -> None:
        config = self.config
        self._environment.disk.make_folder(config.folder)
        mark = await self.join_state.load()
        # Durable before the Raft peer runs, so before group 0 can learn of it: the mark is never behind the record.
        await self.join_state.save(incarnation=mark.incarnation + 1)
        if mark.stage is not JoinStage.MEMBER:
            self.members_known.set()
        known_members = await self.formation.join_or_create(self._create)
        running = await self._open(known_members, alive)
        if mark.stage is JoinStage.MEMBER and self._was_never_normal(running.store):
            await self.formation.check_not_left(running.store.members.values())
        ticket = running.machine.watch(self._follow, MEMBERS_PREFIX)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(running.raft.run())
                tasks.create_task(running.client.run())
                tasks.create_task(self._watch_for_removal(running))
                self._running = running
                if known_members:
                    await self._reach(FaultPoint.JOIN_GROUP0_STARTED)
                self.opened.set()
                self.members_known.set()
                tasks.create_task(self._lead_once_confirmed(running, alive, operations))
                await self._must_end.wait()
                if self._other_process is not None:
                    raise self._other_process
                error = self._removal_error(running.store)
                await self.mark_left()
                raise error
        finally:
            running.machine.unwatch(ticket)
            self._running = None

    async def join_response(self, response: JoinNodeResponse, within_ms: int) -> JoinNodeResponseAnswer:
        """Answered once it has taken effect: the coordinator continues as soon as it has the answer, and counts on a
        learner that runs."""
        await self._reach(FaultPoint.JOIN_RESPONSE_RECEIVED)
        try:
            async with asyncio.timeout(within_ms / 1000):
                if await self.formation.respond(response) is ResponseDecision.STALE:
                    return JoinNodeResponseAnswer(stale_attempt=True)
                if response.history is not None:
                    await self.opened.wait()
        except TimeoutError:
            raise Unavailable(
                f"the response has not taken effect within {within_ms} ms", advice="send it again"
            ) from None
        return JoinNodeResponseAnswer()

    def _was_never_normal(self, store: Group0Store) -> bool:
        """As far as this node's own state tells, which may be old."""
        key = node_key(self.config.member.host)
        entry = store.get(key)
        row = None if entry is None else decode_row(key, entry.value)
        has_joined = isinstance(row, Node) and row.state not in JOINING_STATES
        return self.join_state.mark.join_id is not None and not has_joined

    def _removal_error(self, store: Group0Store) -> Refused:
        """A join that was rolled back ends with its reason."""
        host = self.config.member.host
        request = latest_join(topology_of(store), host) if store.index > 0 else None
        if store.index > 0 and (request is None or not request.error):
            return removed_error(self.config.member)
        return rejected("" if request is None else request.error)

    def learn_left(self) -> None:
        """A member refuses this host because it has left the cluster."""
        if self._running is not None:
            self._on_removed()

    async def mark_left(self) -> None:
        """Durable on return: this node never starts again. It serves until it is stopped."""
        await self.join_state.save(stage=JoinStage.REMOVED)

    # ---- the confirmation of this start

    async def _lead_once_confirmed(self, running: "RunningGroup0", alive: Alive, operations: RunsOperations) -> None:
        """Until cancelled. Confirms this start first; `group0/start_record.py` has the reasons.

        INV-START-1: until then nothing is fed, served or committed. INV-START-2: committed incarnations of a host
        strictly grow. INV-START-4: a majority of voters, none an older copy, needs no operator."""
        mark, host = self.join_state.mark, self.config.member.host
        record = StartRecord(
            incarnation=mark.incarnation, start=self._start, stores=tuple(one.store for one in mark.stores)
        )
        while True:
            try:
                own = await self._confirmed_by(running, record)
                if own is not None:
                    break
            except MustNotRun as refusal:
                self._context.report("start.refused", {"cause": refusal.message})
                raise
            except EblaError as error:
                cause = "no majority" if isinstance(error, Unavailable) else error.message
                self._wait_for_start(f"waits for group 0 to confirm start {record.incarnation}: {cause}")
                await asyncio.sleep(CONFIRM_RETRY_MS / 1000)
        await self.join_state.save(confirmed=record.incarnation, offered=())
        running.machine.watch(lambda _step: self._check_record(running, own), start_key(host))
        self._check_record(running, own)
        running.client.is_confirmed = True
        self.waits_for_start = ""
        self._context.report("start.confirmed", {"incarnation": record.incarnation, "start": str(record.start)})
        self.confirmed.set()
        async with asyncio.TaskGroup() as tasks:
            rng = self._environment.rng
            tasks.create_task(assign_voters(running.raft.core, running.machine, alive, operations, rng))
            tasks.create_task(keep_own_entry(running.machine, self.config.member, operations.request, rng))

    async def _confirmed_by(self, running: "RunningGroup0", record: StartRecord) -> OwnStart | None:
        """None: it was offered to group 0, and the record has to be read again."""
        host, mark = self.config.member.host, self.join_state.mark
        self._require_features(running.store)
        await running.client.read_barrier(CONFIRM_MS)
        self._require_features(running.store)
        entry = running.store.get(start_key(host))
        stored = None if entry is None else decode_stored(StartRecord, entry.value)
        recorded = None if stored is None else stored.value
        # A start that was offered and then ended may have been confirmed: that record is ours.
        is_ours = recorded is not None and recorded.start in mark.offered and recorded.start != self._start
        previous = recorded.incarnation if recorded is not None and is_ours else mark.confirmed
        own = OwnStart(previous_incarnation=previous, record=record)
        decision = decide_start(recorded, own)
        if decision is StartDecision.CONFIRMED:
            return own
        if decision is not StartDecision.CONFIRM:
            raise start_refusal(decision, host, recorded, own)
        transaction = confirmation(host, own, stored, None if entry is None else entry.revision)
        if self._start not in mark.offered:
            await self.join_state.save(offered=(*mark.offered, self._start))
        await running.client.confirm_start(transaction, CONFIRM_MS)
        return None

    def _require_features(self, store: Group0Store) -> None:
        """A node without a feature in use would receive commands that it cannot read."""
        missing = missing_features(store, self.config.member.features)
        if missing:
            raise MustNotRun(
                f"the cluster uses features that this node lacks: {', '.join(missing)}", advice=FEATURES_ADVICE
            )

    def _wait_for_start(self, words: str) -> None:
        if words != self.waits_for_start:
            self.waits_for_start = words
            self._context.report("group0.waits", {"reason": words})

    def _check_record(self, running: "RunningGroup0", own: OwnStart) -> None:
        """Another start under the identity of this node: one of the two runs on a copy, and the later one continues."""
        host = self.config.member.host
        entry = running.store.get(start_key(host))
        recorded = None if entry is None else decode_stored(StartRecord, entry.value).value
        if recorded is not None and recorded.start != own.record.start:
            self._other_process = start_refusal(StartDecision.OTHER_PROCESS, host, recorded, own)
            self._must_end.set()

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

    async def _open(self, known_members: tuple[Member, ...], alive: Alive) -> "RunningGroup0":
        mark = self.join_state.mark
        assert mark.stage in (JoinStage.ACCEPTED, JoinStage.MEMBER), "INV-NODE-21: it is accepted, or created the group"
        raft, machine, transport = self._assemble(mark.history)
        await raft.open()
        if mark.stage is JoinStage.MEMBER and raft.log.log_id != mark.log_id:
            raise lost_folder_error(self.config.folder, mark)
        transport.learn((*known_members, *machine.store.members.values()))
        client = Group0Client(mark.incarnation, machine, raft, self._peers, transport)
        return RunningGroup0(raft=raft, machine=machine, transport=transport, client=client, alive=alive)

    def _assemble(self, history: HistoryId) -> tuple[RaftDriver[Group0Store], Group0StateMachine, Group0Transport]:
        config, limits = self.config, self.config.limits
        machine = Group0StateMachine(Group0Store((HistoryStart(history, 0),)))
        transport = Group0Transport(config.member, self._peers, machine)
        options = RaftOptions(
            peer=PeerId(peer_number(config.member.host)),
            tick_ms=limits.raft_tick_ms,
            election_ticks=max(2, limits.raft_election_ms // limits.raft_tick_ms),
            forward_proposals=False,
            campaign_early_when_ahead=True,
            apply_bytes_max=APPLY_BYTES_MAX,
        )
        raft_config = RaftConfig(
            folder=config.folder,
            options=options,
            report=self._context.report,
            snapshot_entries_max=config.snapshot_entries_max,
            kept_entries=config.kept_entries,
            before_first_snapshot=self._save_membership,
        )
        return RaftDriver(self._environment, raft_config, machine, transport), machine, transport

    async def _save_membership(self, log_id: int) -> None:
        await self.join_state.save(stage=JoinStage.MEMBER, log_id=log_id, members=())

    # ---- following the members

    def _follow(self, step: ChangeSet) -> None:
        for change in step.changes:
            if change.key.startswith(MEMBERS_PREFIX):
                member = self.running.machine.store.members[change.key]
                self.running.transport.learn((member,))
                if member.host == self.config.member.host and not member.present:
                    self._on_removed()

    def _on_removed(self) -> None:
        self.removed = True
        self._must_end.set()

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
        # A learner without its first state has no members of its own. If its join is rolled back, it gets no state.
        for member in tuple(running.machine.store.members.values()) or self.join_state.mark.members:
            if member.host == own or not member.present:
                continue
            try:
                answer = await self._peers.call(member.host, GROUP0_MEMBERSHIP, MembershipRequest(own), 1_000)
            except EblaError:
                continue
            same_history = answer.revision.history == running.machine.store.revision.history
            if same_history and answer.role is MemberRole.REMOVED:
                self._on_removed()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningGroup0:
    """The parts of a node that is in group 0."""

    raft: RaftDriver[Group0Store]
    machine: Group0StateMachine
    transport: Group0Transport
    client: Group0Client
    alive: Alive
    """By the failure detector of this node."""

    @property
    def store(self) -> Group0Store:
        return self.machine.store

    def leader_host(self) -> HostId | None:
        leader = self.raft.core.leader
        return None if leader == NO_PEER else self.transport.host_of(leader)

    async def transfer_leadership(self, hosts: Collection[HostId], within_ms: int) -> None:
        """From this node to one of these voters. Returns once one of them leads; asks another one meanwhile, because
        Raft gives up a transfer that takes too long."""
        asked: Counter[HostId] = Counter()
        try:
            async with asyncio.timeout(within_ms / 1000):
                while self.leader_host() not in hosts:
                    if self.raft.is_leader:
                        target = self._transfer_target(hosts, asked)
                        asked[target] += 1
                        self.raft.post(TransferLeadership(PeerId(peer_number(target))))
                    try:
                        async with asyncio.timeout(TRANSFER_AGAIN_MS / 1000):
                            await self.raft.wait_status_changed()
                    except TimeoutError:
                        continue
        except TimeoutError:
            raise DeadlineExceeded(
                f"no host took over leadership within {within_ms} ms, asked: {', '.join(map(str, asked)) or 'none'}",
                advice="see ebla group0 members",
            ) from None

    def _transfer_target(self, hosts: Collection[HostId], asked: Mapping[HostId, int]) -> HostId:
        """One that is up, asked least, and then lags least: a host that died a moment ago lags least too."""
        role = self.raft.core.role
        progress = role.progress if isinstance(role, Leader) else {}

        def rank(host: HostId) -> tuple[bool, int, int]:
            known = progress.get(PeerId(peer_number(host)))
            return (not self.alive(host), asked.get(host, 0), 0 if known is None else -known.match)

        return min(sorted(hosts), key=rank)


async def read_committed_store(environment: Environment, folder: str) -> Group0Store:
    """What the node's own disk knows to be committed, for a node that does not run yet."""
    log, recovered = await RaftStorage.open(environment.disk, environment.rng, folder)
    builder = snapshot.StoreBuilder()
    async with aclosing(log.read_snapshot(recovered.snapshot)) as chunks:
        async for chunk in chunks:
            builder.add(chunk)
    machine = Group0StateMachine(builder.finish())
    for entry in recovered.entries:
        if entry.index > recovered.hard_state.commit:
            break
        if entry.kind is EntryKind.COMMAND:
            machine.apply(entry)
        else:
            machine.apply_membership(entry, change_of(entry))
    await log.close()
    return machine.store
