"""Serves the verbs of group 0, for other nodes and for the operator of this one."""

import asyncio

from ebla.aio.eager_future import EagerFuture
from ebla.control.group0.node import Group0Node, RunningGroup0
from ebla.control.group0.pages import KeySelection, PagedReads, PageLimits, change_sets_of_a_page
from ebla.group0.change_feed import ChangeSet, changes_under
from ebla.group0.commands import CommandAnswer
from ebla.group0.discovery import ClusterMember
from ebla.group0.join_messages import JoinNodeResponse, JoinNodeResponseAnswer
from ebla.group0.members import Member, MemberRole, member_key, peer_number
from ebla.model.errors import InvalidRequest, Refused, Unavailable
from ebla.model.identity import HostId
from ebla.model.transaction import Revision
from ebla.ports.rng import Rng
from ebla.raft.messages import PeerId
from ebla.raft.roles import Leader
from ebla.wire.group0_messages import (
    DiscoverAnswer,
    DiscoverRequest,
    ExecuteAnswer,
    ExecuteRequest,
    Group0ReadAnswer,
    Group0ReadRequest,
    Group0Report,
    KeyValue,
    LockAnswer,
    LockRequest,
    MemberReport,
    MembershipAnswer,
    MembershipRequest,
    MembersRequest,
    ProposeRequest,
    RaftMessages,
    SnapshotChunk,
    SnapshotChunkAnswer,
    TransferLeadershipRequest,
    WatchAnswer,
    WatchedChange,
    WatchRequest,
)
from ebla.wire.peers import Peers
from ebla.wire.server import IncomingCall, Server
from ebla.wire.verbs import (
    GROUP0_DISCOVER,
    GROUP0_EXECUTE,
    GROUP0_LOCK,
    GROUP0_MEMBERS,
    GROUP0_MEMBERSHIP,
    GROUP0_PROPOSE,
    GROUP0_READ,
    GROUP0_TRANSFER,
    GROUP0_WATCH,
    JOIN_NODE_RESPONSE,
    RAFT,
    SNAPSHOT_CHUNK,
    EmptyAnswer,
)

DEFAULT_PAGE_LIMITS = PageLimits()
SMALL_READ_KEYS_MAX = 8
"""So few keys fit into one page at any size of their values."""


class Group0Service:
    def __init__(
        self,
        group0: Group0Node,
        peers: Peers,
        rng: Rng,
        page_limits: PageLimits = DEFAULT_PAGE_LIMITS,
    ) -> None:
        self._group0 = group0
        self._peers = peers
        self._rng = rng
        self._page_limits = page_limits
        self._reads = PagedReads(page_limits)

    def serve_peers(self, server: Server) -> None:
        server.serve_notice(RAFT, self._raft)
        server.serve(SNAPSHOT_CHUNK, self._chunk)
        server.on_introduced = self._group0.peer_connected
        server.serve(GROUP0_PROPOSE, self._propose)
        server.serve(GROUP0_DISCOVER, self._discover)
        server.serve(JOIN_NODE_RESPONSE, self._join_response)
        server.serve(GROUP0_MEMBERSHIP, self._membership)
        server.serve(GROUP0_TRANSFER, self._transfer)

    def serve_operator(self, server: Server, *, shared: bool = False) -> None:
        """`shared`: the server also serves the peers, whose verbs are registered already."""
        server.serve(GROUP0_READ, self._read)
        server.serve_future(GROUP0_EXECUTE, self._execute, ExecuteAnswer)
        server.serve(GROUP0_WATCH, self._watch)
        server.serve(GROUP0_LOCK, self._lock)
        server.serve(GROUP0_MEMBERS, self._members)
        if not shared:
            server.serve(GROUP0_TRANSFER, self._transfer)

    # ---- between peers

    def _raft(self, notice: RaftMessages, _call: IncomingCall) -> None:
        """Drops messages of another history, and those that arrive before the Raft peer runs."""
        try:
            running = self._group0.running
        except Unavailable:
            return
        # Compared as integers: comparing UUIDs runs Python code, for every message.
        if notice.history.int != running.machine.store.chain[-1].history.int:
            return
        running.transport.learn_sender(notice.host, notice.address)
        running.raft.post_all(notice.messages)

    async def _chunk(self, chunk: SnapshotChunk, _call: IncomingCall) -> SnapshotChunkAnswer:
        return await self._of_history(chunk.history).raft.receive_chunk(chunk)

    def _propose(self, request: ProposeRequest, call: IncomingCall) -> EmptyAnswer:
        self._group0.running.client.accept_proposal(request, call.peer.host)
        return EmptyAnswer()

    async def _discover(self, request: DiscoverRequest, _call: IncomingCall) -> DiscoverAnswer:
        config = self._group0.config
        if self._is_member():
            return DiscoverAnswer(ClusterMember(config.member.host, config.cluster, config.cluster_name))
        return DiscoverAnswer(await self._group0.formation.answer(request))

    async def _join_response(self, response: JoinNodeResponse, call: IncomingCall) -> JoinNodeResponseAnswer:
        return await self._group0.join_response(response, call.work_ms())

    def _membership(self, request: MembershipRequest, _call: IncomingCall) -> MembershipAnswer:
        store = self._group0.running.store
        known = store.members.get(member_key(request.host))
        return MembershipAnswer(None if known is None else known.role, store.revision)

    async def _transfer(self, request: TransferLeadershipRequest, call: IncomingCall) -> EmptyAnswer:
        running = self._group0.running
        member = self._known_member(running, request.host)
        if member.role is not MemberRole.VOTER:
            raise InvalidRequest(f"host {request.host} is a {member.role}, and only a voter can lead")
        leader = running.leader_host()
        if leader is None:
            raise Unavailable("no leader of group 0 is known")
        if leader == request.host:
            return EmptyAnswer()
        if not running.raft.is_leader:
            return await self._peers.call(leader, GROUP0_TRANSFER, request, call.remaining_ms())
        await running.transfer_leadership((request.host,), call.work_ms())
        return EmptyAnswer()

    # ---- for the operator

    async def _read(self, request: Group0ReadRequest, call: IncomingCall) -> Group0ReadAnswer:
        running = self._group0.running
        # Later pages of a state that was read after a barrier need no barrier.
        if request.quorum and not (request.start and self._reads.holds(_selection(request), request.at)):
            await running.client.read_barrier(call.work_ms())
        store = running.store
        if not request.prefixes and len(request.keys) <= SMALL_READ_KEYS_MAX:
            entries = [(key, store.get(key)) for key in dict.fromkeys(request.keys)]
            found = tuple(KeyValue(key, entry.value, entry.revision) for key, entry in entries if entry is not None)
            return Group0ReadAnswer(store.revision, found)
        page = self._reads.page(store, _selection(request), request.at, request.start)
        rows = tuple(KeyValue(key, entry.value, entry.revision) for key, entry in page.rows)
        return Group0ReadAnswer(page.revision, rows, page.more)

    def _execute(self, request: ExecuteRequest, call: IncomingCall) -> EagerFuture[CommandAnswer]:
        return self._group0.running.client.transact(request.transaction, call.work_ms())

    async def _watch(self, request: WatchRequest, call: IncomingCall) -> WatchAnswer:
        running = self._group0.running
        store = running.store
        after = request.after
        if after is None or after.history != store.revision.history or request.start:
            return self._reset(running, request)
        woken = asyncio.Event()

        def wake(step: ChangeSet) -> None:
            if changes_under(step.changes, request.prefix):
                woken.set()

        ticket = running.machine.watch(wake, request.prefix)
        try:
            steps = store.recent.after(after.index, request.prefix)
            if steps == ():
                wait_ms = min(request.wait_ms, call.remaining_ms() - 200)
                try:
                    async with asyncio.timeout(max(wait_ms, 0) / 1000):
                        await woken.wait()
                except TimeoutError:
                    pass
                steps = running.store.recent.after(after.index, request.prefix)
        finally:
            running.machine.unwatch(ticket)
        page = None if steps is None else change_sets_of_a_page(steps, self._page_limits)
        if page is None:
            return self._reset(running, request)
        taken, all_taken = page
        changes = tuple(
            WatchedChange(change.key, change.value, step.index) for step in taken for change in step.changes
        )
        if not all_taken:
            return WatchAnswer(revision=Revision(after.history, taken[-1].index), reset=False, changes=changes)
        # A node that lags behind a caller that came from another node must not move it back, or it would receive the
        # same changes twice.
        return WatchAnswer(revision=max(after, running.store.revision), reset=False, changes=changes)

    async def _lock(self, _request: LockRequest, call: IncomingCall) -> LockAnswer:
        lock, revision = await self._group0.running.client.acquire_lock(self._rng, call.work_ms())
        return LockAnswer(lock, revision)

    def _members(self, _request: MembersRequest, _call: IncomingCall) -> Group0Report:
        return report_of(self._group0.running)

    # ---- shared

    def _is_member(self) -> bool:
        return self._group0.is_running and self._group0.running.store.index > 0

    def _of_history(self, history: object) -> RunningGroup0:
        running = self._group0.running
        if history != running.store.revision.history:
            raise Refused(f"this node follows history {running.store.revision.history}, not {history}")
        return running

    def _known_member(self, running: RunningGroup0, host: HostId) -> Member:
        member = running.store.members.get(member_key(host))
        if member is None or not member.present:
            raise InvalidRequest(f"host {host} is not a member of group 0")
        return member

    def _reset(self, running: RunningGroup0, request: WatchRequest) -> WatchAnswer:
        at = request.after if request.start else None
        page = self._reads.page(running.store, KeySelection((), (request.prefix,)), at, request.start)
        changes = tuple(WatchedChange(key, entry.value, entry.revision.index) for key, entry in page.rows)
        return WatchAnswer(revision=page.revision, reset=True, changes=changes, more=page.more)


def _selection(request: Group0ReadRequest) -> KeySelection:
    return KeySelection(request.keys, request.prefixes)


def report_of(running: RunningGroup0) -> Group0Report:
    core, store = running.raft.core, running.store
    progress = core.role.progress if isinstance(core.role, Leader) else {}

    def lag_of(member: Member) -> int | None:
        known = progress.get(PeerId(peer_number(member.host)))
        return None if known is None else core.last_index - known.match

    return Group0Report(
        history=store.revision.history,
        role=type(core.role).__name__.lower(),
        term=core.term,
        leader=running.leader_host(),
        commit=core.commit_index,
        applied=store.index,
        first=core.first_index,
        last=core.last_index,
        members=tuple(MemberReport(member, lag_of(member)) for _, member in sorted(store.members.items())),
    )
