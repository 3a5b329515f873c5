"""Serves requests of operators, on any node: it puts them into the queue, once by their ids."""

import msgspec

from ebla.control.topology.barrier_client import DownHosts
from ebla.control.topology.deps import TopologyDeps, expires_at, remaining_ms
from ebla.model.errors import DeadlineExceeded, EblaError, Outcome, Refused, Unavailable
from ebla.model.identity import HostId
from ebla.topology.commands import SubmitGlobalRequest, SubmitNodeRequest
from ebla.topology.request_queue import LivenessView, objections_to_submit, submission_error
from ebla.topology.routing.replica_losses import concerns_about_removal
from ebla.topology.snapshot import NodeRequest, Snapshot
from ebla.topology.states import GlobalRequestKind
from ebla.wire.server import IncomingCall, Server
from ebla.wire.topology_messages import (
    SubmitTopologyAnswer,
    SubmitTopologyRequest,
    TopologyRequest,
)
from ebla.wire.verbs import SUBMIT_REQUEST

ATTEMPT_MS = 5_000


class RequestService:
    def __init__(self, topology: TopologyDeps, own: HostId, silent: DownHosts) -> None:
        """`silent`: the hosts that do not answer. Unlike those that are down, an excluded host may answer."""
        self._topology = topology
        self._own = own
        self._silent = silent

    def serve_on(self, server: Server) -> None:
        server.serve(SUBMIT_REQUEST, self._serve_submit)

    async def _serve_submit(self, message: SubmitTopologyRequest, call: IncomingCall) -> SubmitTopologyAnswer:
        if message.check_only:
            return await self.check(message.request, call.work_ms())
        return SubmitTopologyAnswer(request=await self.submit(message.request, call.work_ms()))

    async def check(self, request: TopologyRequest, within_ms: int) -> SubmitTopologyAnswer:
        """Raises what `submit` would raise."""
        snapshot = await self._topology.read(within_ms)
        self._require(snapshot, request)
        if not isinstance(request, NodeRequest):
            return SubmitTopologyAnswer()
        return SubmitTopologyAnswer(concerns=concerns_about_removal(snapshot, request, self._silent()))

    async def submit(self, request: TopologyRequest, within_ms: int) -> TopologyRequest:
        """The stored request. Raises `Unavailable` if it was not stored for want of a majority, `DeadlineExceeded` if
        that is not known."""
        expires, may_be_stored, problem = expires_at(within_ms), False, "other topology changes came first"
        while remaining_ms(expires) > 0:
            try:
                stored = await self._attempt(request, expires)
            except Refused:
                raise
            except EblaError as error:
                may_be_stored |= error.outcome is Outcome.UNKNOWN
                if not error.is_transient and error.outcome is Outcome.NOT_APPLIED:
                    raise
                problem = error.message
            else:
                if stored is not None:
                    return stored
            await self._topology.pause()
        if may_be_stored:
            raise DeadlineExceeded(
                f"it is not known whether request {request.id} was stored: {problem}",
                advice=f"look for it: ebla topology wait {request.id}",
            )
        raise Unavailable(f"the request was not stored within {within_ms} ms: {problem}", advice="try again later")

    async def _attempt(self, request: TopologyRequest, expires: float) -> TopologyRequest | None:
        """None: another change was committed first. After an attempt with an unknown outcome, the read shows whether
        it was stored; one that is still on its way fails by its condition, or makes the next one fail."""
        topology = self._topology
        snapshot = await topology.read(min(ATTEMPT_MS, remaining_ms(expires)))
        known = stored_request(snapshot, request)
        if known is not None:
            return known
        self._require(snapshot, request)
        # The order of the queue goes by the clocks of nodes.
        own = msgspec.structs.replace(request, initiator=self._own, start_ms=topology.now_ms())
        command = SubmitNodeRequest(own) if isinstance(own, NodeRequest) else SubmitGlobalRequest(own)
        done = await topology.commit(snapshot, (command,), min(ATTEMPT_MS, remaining_ms(expires)))
        if done is None:
            return None
        topology.report("request.submitted", {"request": str(request.id), "kind": str(request.kind)})
        return stored_request(done, request)

    def _require(self, snapshot: Snapshot, request: TopologyRequest) -> None:
        if not isinstance(request, NodeRequest):
            return
        silent = self._silent()
        alive = frozenset(host for host in snapshot.nodes if host not in silent)
        objections = objections_to_submit(snapshot, request, LivenessView(alive, self._topology.now_ms()))
        if objections:
            raise submission_error(snapshot, objections)


def stored_request(snapshot: Snapshot, request: TopologyRequest) -> TopologyRequest | None:
    """The request under the same id, or an open one that does the same."""
    if isinstance(request, NodeRequest):
        return snapshot.node_requests.get(request.id)
    known = snapshot.global_requests.get(request.id)
    if known is not None or request.kind is not GlobalRequestKind.CHECK_AND_REPAIR_CDC_STREAMS:
        return known
    queue = (snapshot.global_requests[one] for one in snapshot.state.global_requests)
    return next((one for one in queue if one.kind is request.kind), None)
