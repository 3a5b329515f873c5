"""A table client for a command: the first node that runs answers, over its sockets."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from ebla.cli.cluster.local_cluster import LocalNode, find_nodes
from ebla.cli.cluster.node_calls import admin_client
from ebla.client.table_client import TableClient
from ebla.model.errors import EblaError, InvalidRequest
from ebla.model.identity import Address
from ebla.observe.event_reporter import discard_event
from ebla.runtime.event_loop import new_event_loop
from ebla.runtime.system_clock import SystemClock
from ebla.runtime.system_rng import SystemRng
from ebla.runtime.tcp_transport import TcpTransport, TransportLimits
from ebla.wire.frames import Lane
from ebla.wire.verbs import A, Q, Verb

T = TypeVar("T")
TIMEOUT_DEFAULT_MS = 10_000


def with_table_client(data: Path, name: str | None, work: Callable[[TableClient], Awaitable[T]]) -> T:
    node = choose_node(data, name)
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(_run(node, work))


def choose_node(data: Path, name: str | None) -> LocalNode:
    nodes = find_nodes(data)
    chosen = next((node for node in nodes if (node.name == name if name else node.running_pid() is not None)), None)
    if chosen is None:
        what = f"there is no node {name!r} in {data}" if name else f"no node of {data} runs"
        raise InvalidRequest(what, advice="see `ebla status`; `ebla up` starts a cluster")
    return chosen


async def _run(node: LocalNode, work: Callable[[TableClient], Awaitable[T]]) -> T:
    async with TcpTransport(None, TransportLimits(), discard_event) as transport:

        async def ask_control(verb: Verb[Q, A], request: Q, deadline_ms: int) -> A:
            admin = admin_client(transport, node, deadline_ms)
            return await admin.ask(Address(str(node.folder.control_socket)), verb, request)

        async def ask_shard(verb: Verb[Q, A], request: Q, deadline_ms: int) -> A:
            admin = admin_client(transport, node, deadline_ms)
            return await admin.ask(Address(str(node.folder.shard_socket(0))), verb, request, Lane.DATA)

        async with asyncio.TaskGroup() as tasks:
            client = TableClient(tasks, (ask_control, ask_shard), (SystemClock(), SystemRng()))
            try:
                await client.refresh(TIMEOUT_DEFAULT_MS)
                return await work(client)
            except EblaError as error:
                failure = error
        # Not from within the group, which would wrap it.
        raise failure
