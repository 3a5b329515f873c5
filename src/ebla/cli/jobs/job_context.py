"""What job commands work with: a job client, the topology and the status of the cluster."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from ebla.cli.cluster.local_cluster import LocalNode, find_nodes
from ebla.cli.cluster.node_calls import choose_node, control_caller
from ebla.client.cluster_view import PipelineView, pipeline_view
from ebla.client.job_client import JobClient
from ebla.client.node_client import read_topology
from ebla.model.errors import EblaError, InvalidRequest
from ebla.model.identity import HostId
from ebla.model.records.jobs import PipelineState
from ebla.observe.event_reporter import discard_event
from ebla.runtime.event_loop import new_event_loop
from ebla.runtime.system_clock import SystemClock
from ebla.runtime.system_rng import SystemRng
from ebla.runtime.tcp_transport import TcpTransport, TransportLimits
from ebla.topology.snapshot import Snapshot
from ebla.wire.verbs import STATUS, StatusAnswer, StatusRequest

T = TypeVar("T")
TIMEOUT_MS = 10_000
PREFIX_LETTERS_MIN = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCommandContext:
    jobs: JobClient
    snapshot: Snapshot
    status: StatusAnswer
    """The status of the node that is called."""
    leader_status: StatusAnswer | None = None
    """None if the leader is on another machine, or does not answer."""
    names: tuple[tuple[str, HostId], ...] = ()
    """The names of the nodes of this machine."""

    @property
    def down(self) -> tuple[HostId, ...]:
        return tuple(peer.host for peer in self.status.peers if peer.host is not None and not peer.up)

    @property
    def leader(self) -> HostId | None:
        return None if self.status.group0 is None else self.status.group0.leader

    async def pipeline(self) -> tuple[PipelineState | None, PipelineView]:
        """Its last stored state, and that state checked against the current leader."""
        state = await self.jobs.pipeline()
        return state, pipeline_view(state, self.leader, self.leader_status)

    def host(self, text: str) -> HostId:
        """Finds a node by address, host id, the first letters of a host id, or its name on this machine."""
        named = [host for name, host in self.names if name == text]
        members = list(self.snapshot.members())
        found = named or [node.host for node in members if text == node.address]
        if not found and len(text) >= PREFIX_LETTERS_MIN:
            found = [node.host for node in members if str(node.host).startswith(text.lower())]
        if not found:
            raise InvalidRequest(
                f"{text!r} is no node", advice="name it by its address or host id, or as node1; see `ebla ring`"
            )
        if len(found) > 1:
            raise InvalidRequest(f"{len(found)} nodes begin with {text!r}", advice="name more of the host id")
        return found[0]

    def address(self, host: HostId) -> str:
        node = self.snapshot.nodes.get(host)
        return str(host) if node is None else node.address


def with_job_context(data: Path, name: str | None, work: Callable[[JobCommandContext], Awaitable[T]]) -> T:
    node = choose_node(data, name)
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(_run(node, _local_nodes(data), work))


def _local_nodes(data: Path) -> dict[HostId, LocalNode]:
    known = [(node.folder.read_identity(), node) for node in find_nodes(data)]
    return {identity.host: node for identity, node in known if identity is not None}


async def _run(node: LocalNode, local: dict[HostId, LocalNode], work: Callable[[JobCommandContext], Awaitable[T]]) -> T:
    async with TcpTransport(None, TransportLimits(), discard_event) as transport:
        call = control_caller(transport, node)

        async def call_leader(host: HostId | None) -> StatusAnswer | None:
            if host is None or host not in local:
                return None
            try:
                return await control_caller(transport, local[host])(STATUS, StatusRequest(), TIMEOUT_MS)
            except EblaError:
                return None

        snapshot, _ = await read_topology(call, TIMEOUT_MS)
        status = await call(STATUS, StatusRequest(), TIMEOUT_MS)
        jobs = JobClient(call, clock=SystemClock(), rng=SystemRng(), deadline_ms=TIMEOUT_MS)
        leader_status = await call_leader(None if status.group0 is None else status.group0.leader)
        names = tuple((each.name, host) for host, each in local.items())
        return await work(
            JobCommandContext(jobs=jobs, snapshot=snapshot, status=status, leader_status=leader_status, names=names)
        )
