"""Jobs for a command: the first node that runs answers, over its socket; what it needs to know of the cluster is read
along."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from ebla.cli.asking import admin_of
from ebla.cli.local_cluster import LocalNode, find_nodes
from ebla.cli.table_access import chosen_node
from ebla.client.jobs import JobClient
from ebla.client.topology import read_topology
from ebla.model.errors import InvalidRequest
from ebla.model.identity import Address, HostId
from ebla.runtime.event_loop import new_event_loop
from ebla.runtime.system_chance import SystemChance
from ebla.runtime.system_clock import SystemClock
from ebla.runtime.tcp_transport import TcpTransport, TransportLimits
from ebla.topology.snapshot import Snapshot
from ebla.wire.report import unreported
from ebla.wire.verbs import STATUS, A, Q, StatusAnswer, StatusRequest, Verb

T = TypeVar("T")
TIMEOUT_MS = 10_000
PREFIX_LETTERS_MIN = 4


@dataclass(frozen=True, slots=True)
class JobAccess:
    jobs: JobClient
    snapshot: Snapshot
    status: StatusAnswer
    """Of the node that is asked."""
    names: tuple[tuple[str, HostId], ...] = ()
    """What the nodes of this machine are called."""

    @property
    def down(self) -> tuple[HostId, ...]:
        return tuple(peer.host for peer in self.status.peers if peer.host is not None and not peer.up)

    @property
    def leader(self) -> HostId | None:
        return None if self.status.group0 is None else self.status.group0.leader

    def host(self, text: str) -> HostId:
        """A node by its address, its host id or the first letters of it, or its name on this machine."""
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


def with_jobs(data: Path, name: str | None, work: Callable[[JobAccess], Awaitable[T]]) -> T:
    node = chosen_node(data, name)
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(_run(node, _names(data), work))


def _names(data: Path) -> tuple[tuple[str, HostId], ...]:
    known = [(node.name, node.folder.read_identity()) for node in find_nodes(data)]
    return tuple((name, identity.host) for name, identity in known if identity is not None)


async def _run(node: LocalNode, names: tuple[tuple[str, HostId], ...], work: Callable[[JobAccess], Awaitable[T]]) -> T:
    async with TcpTransport(None, TransportLimits(), unreported) as transport:

        async def ask(verb: Verb[Q, A], request: Q, deadline_ms: int) -> A:
            admin = admin_of(transport, node, deadline_ms)
            return await admin.ask(Address(str(node.folder.control_socket)), verb, request)

        snapshot, _ = await read_topology(ask, TIMEOUT_MS)
        status = await ask(STATUS, StatusRequest(), TIMEOUT_MS)
        jobs = JobClient(ask, (SystemClock(), SystemChance()), TIMEOUT_MS)
        return await work(JobAccess(jobs, snapshot, status, names))
