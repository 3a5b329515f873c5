"""Serves new nodes that want to join, on any member: their requests, and their queries about them.

A request is committed here and nothing more: the coordinator adds the node to group 0 when its turn has come.
"""

from collections.abc import Awaitable, Callable

from ebla.control.fault_points import FaultPoint
from ebla.control.topology.barrier_client import DownHosts
from ebla.control.topology.deps import TopologyDeps, expires_at, remaining_ms
from ebla.group0.join_admission import AdmissionView, admission_error, is_submitted, join_commands
from ebla.group0.join_messages import (
    MODE,
    JoinNodeQuery,
    JoinNodeQueryAnswer,
    JoinNodeRequest,
    JoinNodeWait,
    JoinRequestStatus,
)
from ebla.model.errors import Unavailable
from ebla.model.identity import RequestId
from ebla.topology.request_queue import LivenessView, latest_join, queue_position
from ebla.topology.snapshot import NodeRequest, Snapshot
from ebla.wire.server import IncomingCall, Server
from ebla.wire.verbs import JOIN_NODE_QUERY, JOIN_NODE_REQUEST


class JoinService:
    def __init__(
        self,
        deps: TopologyDeps,
        silent: DownHosts,
        waits_for: Callable[[RequestId], Awaitable[str]],
        reach: Callable[[FaultPoint], Awaitable[None]],
    ) -> None:
        """`silent`: the hosts that do not answer. Unlike those that are down, an excluded host may answer, and must not
        be replaced while it does. `waits_for`: for people, why an open request makes no progress; empty: it is not
        known here."""
        self._deps = deps
        self._silent = silent
        self._waits_for = waits_for
        self._reach = reach

    def serve_on(self, server: Server) -> None:
        """Of the peers."""
        server.serve(JOIN_NODE_QUERY, self._query)
        server.serve(JOIN_NODE_REQUEST, self._request)

    async def _query(self, query: JoinNodeQuery, _call: IncomingCall) -> JoinNodeQueryAnswer:
        self._require_state()
        snapshot = self._deps.topology.snapshot
        row, request = snapshot.nodes.get(query.host), latest_join(snapshot, query.host)
        return JoinNodeQueryAnswer(
            mode=MODE,
            cluster=self._deps.group0.config.cluster,
            state=None if row is None else row.state,
            request=None if request is None else await self._status(snapshot, request),
        )

    async def _status(self, snapshot: Snapshot, request: NodeRequest) -> JoinRequestStatus:
        return JoinRequestStatus(
            attempt=request.id,
            outcome=request.outcome,
            position=queue_position(snapshot, request.id),
            waits_for=await self._waits_for(request.id) if request.is_open else "",
            error=request.error,
        )

    async def _request(self, request: JoinNodeRequest, call: IncomingCall) -> JoinNodeWait:
        await self._reach(FaultPoint.JOIN_REQUEST_RECEIVED)
        self._require_state()
        deps, deadline = self._deps, expires_at(call.work_ms())
        while (left_ms := remaining_ms(deadline)) > 0:
            snapshot = await deps.read(left_ms)
            error = admission_error(self._view(snapshot), request)
            if error is not None:
                raise error
            if is_submitted(snapshot, request):
                return JoinNodeWait()
            commands = join_commands(snapshot, request, deps.now_ms())
            if await deps.commit(snapshot, commands, remaining_ms(deadline)) is not None:
                deps.report("join.submitted", {"host": str(request.node.host), "attempt": str(request.attempt)})
                await self._reach(FaultPoint.JOIN_SUBMITTED)
                return JoinNodeWait()
            await deps.pause()
        raise Unavailable(
            "other topology changes came first until the deadline passed", advice="the new node retries automatically"
        )

    def _view(self, snapshot: Snapshot) -> AdmissionView:
        group0, silent = self._deps.group0, self._silent()
        alive = frozenset(host for host in snapshot.nodes if host not in silent)
        return AdmissionView(
            cluster=group0.config.cluster,
            cluster_name=group0.config.cluster_name,
            snapshot=snapshot,
            members=group0.running.store.members,
            liveness=LivenessView(alive, self._deps.now_ms()),
        )

    def _require_state(self) -> None:
        if self._deps.group0.running.store.index == 0:
            raise Unavailable("this node waits for its first state of group 0", advice="ask another member")
