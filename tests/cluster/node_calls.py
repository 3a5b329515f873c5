"""Calls to one process of a real node, over its own socket."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from ebla.cli.cluster.local_cluster import LocalNode
from ebla.model.identity import Address
from ebla.observe.event_reporter import discard_event
from ebla.runtime.system_rng import SystemRng
from ebla.runtime.tcp_transport import TcpTransport
from ebla.wire.client_connection import ConnectionTarget, RpcClientConnection
from ebla.wire.frames import Introduction, Lane
from ebla.wire.peers import PeersContext, connect
from ebla.wire.verbs import A, Q, Verb


@asynccontextmanager
async def calling(node: LocalNode, path: Path, lane: Lane = Lane.DATA) -> AsyncIterator[RpcClientConnection]:
    identity = node.folder.read_identity()
    assert identity is not None
    introduction = Introduction(
        host=identity.host, cluster=identity.cluster, cluster_name=identity.cluster_name, process="test"
    )
    async with TcpTransport(None, discard_event) as transport:
        context = PeersContext(transport=transport, rng=SystemRng(), introduction=introduction, report=discard_event)
        caller, _ = await connect(context, Address(str(path)), ConnectionTarget(lane))
        try:
            yield caller
        finally:
            caller.close("done")


def ask_socket(node: LocalNode, path: Path, verb: Verb[Q, A], request: Q, deadline_ms: int = 5_000) -> A:
    """The socket of a shard or of the bulk process."""

    async def run() -> A:
        async with calling(node, path) as caller:
            return await caller.call(verb, request, deadline_ms)

    return asyncio.run(run())
