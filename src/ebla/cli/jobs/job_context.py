"""What job commands work with: a job client, the topology and the status of the cluster."""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from ebla.cli.cluster.local_cluster import LocalNode, find_nodes
from ebla.cli.cluster.node_calls import choose_node, control_caller, local_transport, read_topology, run_async
from ebla.client.cluster_view import PipelineView, pipeline_view
from ebla.client.job_client import JobClient
from ebla.model.errors import EblaError, InvalidRequest
from ebla.model.identity import HostId
from ebla.model.records.jobs import PipelineState
from ebla.runtime.system_clock import SystemClock
from ebla.runtime.system_rng import SystemRng
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
    return run_async(_run(choose_node(data, name), _local_nodes(data), work))


def _local_nodes(data: Path) -> dict[HostId, LocalNode]:
    known = [(node.folder.read_identity(), node) for node in find_nodes(data)]
    return {identity.host: node for identity, node in known if identity is not None}


async def _run(node: LocalNode, local: dict[HostId, LocalNode], work: Callable[[JobCommandContext], Awaitable[T]]) -> T:
    async with local_transport() as transport:
        call = control_caller(transport, node)
        snapshot = await read_topology(call, TIMEOUT_MS)
        status = await call(STATUS, StatusRequest(), TIMEOUT_MS)
        jobs = JobClient(call, clock=SystemClock(), rng=SystemRng(), deadline_ms=TIMEOUT_MS)
        leader = None if status.group0 is None or status.group0.leader is None else local.get(status.group0.leader)
        leader_status: StatusAnswer | None = None
        if leader is not None:
            with suppress(EblaError):
                leader_status = await control_caller(transport, leader)(STATUS, StatusRequest(), TIMEOUT_MS)
        names = tuple((each.name, host) for host, each in local.items())
        return await work(
            JobCommandContext(jobs=jobs, snapshot=snapshot, status=status, leader_status=leader_status, names=names)
        )
