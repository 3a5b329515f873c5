"""Calls nodes of this machine over their Unix sockets, and other nodes over TLS with a local node's certificate."""

import asyncio
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ebla.cli.cluster.local_cluster import LocalNode, find_nodes, has_left, last_stop, left_text
from ebla.client.cluster_view import ClusterView, NodeProbe, build_cluster_view
from ebla.model.errors import EblaError, InvalidRequest, Unavailable
from ebla.model.identity import Address
from ebla.model.records.jobs import PIPELINE_KEY, PipelineState
from ebla.model.stored_value import decode_stored
from ebla.observe.event_reporter import discard_event
from ebla.options import NodePorts
from ebla.runtime.data_folder import NodeIdentity
from ebla.runtime.event_loop import new_event_loop
from ebla.runtime.system_rng import SystemRng
from ebla.runtime.tcp_transport import TcpTransport
from ebla.topology.keys import PREFIX
from ebla.topology.snapshot import Snapshot
from ebla.wire.client_connection import ConnectionTarget
from ebla.wire.frames import OPERATOR_PROCESS, Introduction
from ebla.wire.group0_messages import Group0ReadRequest
from ebla.wire.group0_pages import ReadPager
from ebla.wire.limits import WireLimits
from ebla.wire.peers import PeersContext, connect
from ebla.wire.verbs import GROUP0_READ, STATUS, STOP, A, Q, StatusRequest, StopRequest, Verb

if TYPE_CHECKING:  # a type alone, and its module loads much
    from ebla.transfers.record_store import ControlCall

CALL_TIMEOUT_MS = 2_000
TOPOLOGY_TIMEOUT_MS = 10_000
LIMITS = WireLimits(connect_ms=CALL_TIMEOUT_MS)

T = TypeVar("T")


async def probe_nodes(nodes: Sequence[LocalNode]) -> list[NodeProbe]:
    """Probes all nodes concurrently, so that one that does not answer delays no other."""
    async with local_transport() as transport:
        async with asyncio.TaskGroup() as tasks:
            tasks_of_nodes = [tasks.create_task(_probe_node(node, transport)) for node in nodes]
    return [task.result() for task in tasks_of_nodes]


async def fetch_cluster_view(nodes: Sequence[LocalNode]) -> ClusterView:
    """The cluster as its nodes see it, with the last stored state of the pipeline."""
    probes = await probe_nodes(nodes)
    return build_cluster_view(probes, await _read_pipeline_state(nodes))


async def _read_pipeline_state(nodes: Sequence[LocalNode]) -> PipelineState | None:
    """As a running node knows it, without a quorum, like the rest of the view."""
    node = next((node for node in nodes if node.running_pid() is not None), None)
    if node is None:
        return None
    try:
        answer = await _call_control(
            node, GROUP0_READ, Group0ReadRequest(keys=(PIPELINE_KEY,), quorum=False), CALL_TIMEOUT_MS
        )
        return next((decode_stored(PipelineState, one.value).value for one in answer.found), None)
    except EblaError:
        return None


async def request_stop(node: LocalNode, reason: str) -> None:
    """Returns once the node has accepted the request; it stops some time later."""
    await _call_control(node, STOP, StopRequest(reason), CALL_TIMEOUT_MS)


def choose_nodes(data: Path, name: str | None) -> list[LocalNode]:
    """The node of that name, or all that run; at least one."""
    nodes = find_nodes(data)
    chosen = [node for node in nodes if (node.name == name if name else node.running_pid() is not None)]
    if not chosen:
        what = f"there is no node {name!r} in {data}" if name else f"no node of {data} runs"
        raise InvalidRequest(what, advice="see `ebla status`; `ebla up` starts a cluster")
    return chosen


def choose_node(data: Path, name: str | None) -> LocalNode:
    """The node of that name, or the first one that runs."""
    return choose_nodes(data, name)[0]


def call_node(data: Path, name: str | None, verb: Verb[Q, A], request: Q, deadline_ms: int) -> A:
    """Calls the control process of a node over its Unix socket."""
    return run_async(_call_control(choose_node(data, name), verb, request, deadline_ms))


def read_snapshot(data: Path, name: str | None = None) -> Snapshot:
    """The topology and the schema, as a majority of group 0 has them now."""
    node = choose_node(data, name)

    async def read() -> Snapshot:
        async with local_transport() as transport:
            return await read_topology(control_caller(transport, node), TOPOLOGY_TIMEOUT_MS)

    return run_async(read())


async def read_topology(call: "ControlCall", deadline_ms: int) -> Snapshot:
    """Linearizable. The timeout is for each page."""
    from ebla.topology.snapshot_builder import from_group0  # `ebla status` does not need it

    pages = ReadPager(Group0ReadRequest(prefixes=(PREFIX,)))
    while (whole := pages.take(await call(GROUP0_READ, pages.request(), deadline_ms))) is None:
        pass
    return from_group0({entry.key: (entry.value, entry.revision) for entry in whole.found})


def control_caller(transport: TcpTransport, node: LocalNode) -> "ControlCall":
    async def call(verb: Verb[Q, A], request: Q, deadline_ms: int) -> A:
        return await call_socket(transport, node, node.folder.control_socket, verb, request, deadline_ms=deadline_ms)

    return call


async def _call_control(node: LocalNode, verb: Verb[Q, A], request: Q, deadline_ms: int) -> A:
    async with local_transport() as transport:
        return await control_caller(transport, node)(verb, request, deadline_ms)


async def probe_contact(contact: str, data: Path) -> NodeProbe:
    """Probes one node by socket path or address. An address needs the certificate of a node of this machine."""
    from ebla.runtime.tls import NodeTls, TlsFolder  # slow to load, and calls of local sockets need no certificate

    nodes = find_nodes(data)
    member = next((node for node in nodes if node.folder.read_identity() is not None), None)
    if member is None:
        raise InvalidRequest(
            f"{data} holds no node whose certificate could be shown to {contact}",
            advice="name the folder of a node of that cluster with --data",
        )
    address = parse_contact(contact, member.options.ports)
    tls = None if address.is_local_socket else NodeTls(TlsFolder(member.folder.tls))
    async with TcpTransport(tls, discard_event) as transport:
        answer = await call_address(transport, _identity_of(member), address, STATUS, StatusRequest())
    return NodeProbe(name=str(address), address=answer.address, host=answer.host, answer=answer)


def parse_contact(text: str, ports: NodePorts) -> Address:
    """A path, or a host with or without a port."""
    if text.startswith("/"):
        return Address(text)
    if not text.strip("[]: "):
        raise InvalidRequest(f"--contact {text!r} names no node", advice="as in 127.0.0.1, 127.0.0.1:7000, or a path")
    host, colon, port = text.rpartition(":")
    if not colon or text.endswith("]") or (text.count(":") > 1 and not text.startswith("[")):
        return Address(text.strip("[]"), ports.control)
    if not port.isdecimal() or not 0 < int(port) < 65_536:
        raise InvalidRequest(f"--contact {text!r} has no valid port", advice="as in 127.0.0.1:7000, or without a port")
    return Address(host.strip("[]"), int(port))


async def _probe_node(node: LocalNode, transport: TcpTransport) -> NodeProbe:
    address = str(node.options.control_address)
    try:
        identity = node.folder.read_identity()
        if identity is None:
            return NodeProbe(name=node.name, address=address, trouble="never started")
        pid = node.running_pid()
        if pid is None and await has_left(node):
            return NodeProbe(
                name=node.name, address=address, host=identity.host, trouble=left_text(node), has_left=True
            )
        if pid is None:
            reason = last_stop(node)
            trouble = f"stopped: {reason}" if reason else "not running"
            return NodeProbe(name=node.name, address=address, host=identity.host, trouble=trouble)
    except EblaError as error:
        return NodeProbe(name=node.name, address=address, trouble=str(error))
    try:
        answer = await control_caller(transport, node)(STATUS, StatusRequest(), CALL_TIMEOUT_MS)
    except EblaError:
        return NodeProbe(name=node.name, address=address, host=identity.host, trouble=f"process {pid} does not answer")
    return NodeProbe(name=node.name, address=address, host=identity.host, answer=answer)


# ---- one call, over its own connection


def run_async(work: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(work)


def local_transport() -> TcpTransport:
    return TcpTransport(None, discard_event)


async def call_socket(
    transport: TcpTransport,
    node: LocalNode,
    socket: Path,
    verb: Verb[Q, A],
    request: Q,
    *,
    deadline_ms: int = CALL_TIMEOUT_MS,
) -> A:
    """Calls a process of the node."""
    address = Address(str(socket))
    return await call_address(transport, _identity_of(node), address, verb, request, deadline_ms=deadline_ms)


def _identity_of(node: LocalNode) -> NodeIdentity:
    identity = node.folder.read_identity()
    if identity is None:
        raise Unavailable(f"{node.name} was never started")
    return identity


async def call_address(
    transport: TcpTransport,
    identity: NodeIdentity,
    address: Address,
    verb: Verb[Q, A],
    request: Q,
    *,
    deadline_ms: int = CALL_TIMEOUT_MS,
) -> A:
    """Calls the process that listens there, as the node of that identity."""
    introduction = Introduction(
        host=identity.host, cluster=identity.cluster, cluster_name=identity.cluster_name, process=OPERATOR_PROCESS
    )
    context = PeersContext(
        transport=transport, rng=SystemRng(), introduction=introduction, limits=LIMITS, report=discard_event
    )
    connection, _ = await connect(context, address, ConnectionTarget(verb.lane))
    try:
        return await connection.call(verb, request, deadline_ms)
    finally:
        connection.close("answered")
