"""Shard clients: how each replica is reached, and which are known to refuse."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import pytest
from tests.unit.request.write_rig import mutation
from tests.unit.topology.small_cluster import cluster, node, replica
from tests.unit.wire.rig import MemoryTransport, introduction

from ebla.feed.shard_peers import ShardAddresses
from ebla.model.errors import DeadlineExceeded, Unreachable
from ebla.model.identity import Address, Replica, TopologyVersion
from ebla.observe.event_reporter import discard_event
from ebla.request.shard_clients import ShardClients
from ebla.sim.rng import SimRng
from ebla.topology.snapshot import Snapshot
from ebla.topology.states import NodeState
from ebla.wire.limits import WireLimits
from ebla.wire.peers import PeersContext
from ebla.wire.row_messages import ReadRowsAnswer, ReadRowsRequest, RowWrite, WriteRowsAnswer, WriteRowsRequest
from ebla.wire.server import IncomingCall, Server
from ebla.wire.verbs import READ_ROWS, WRITE_ROWS

OWN = replica(1, 1)
SIBLING = replica(1, 0)
OTHER = replica(2, 1)
TWO_NODES = cluster(node(1, shard_count=2), node(2, shard_count=2))
LIMITS = WireLimits(backoff_first_ms=1, backoff_max_ms=2)
READ = ReadRowsRequest(version=TopologyVersion(1), table=mutation().table, spans=((b"", None),), rows_max=1, now_s=1)
WRITE = WriteRowsRequest((RowWrite(TopologyVersion(1), mutation().table, mutation().items),))


class LocalStub:
    def __init__(self) -> None:
        self.writes = 0
        self.delay_s = 0.0

    async def write(self, request: WriteRowsRequest, deadline_ms: int) -> WriteRowsAnswer:
        if self.delay_s:
            await asyncio.sleep(self.delay_s)
        self.writes += len(request.writes)
        return WriteRowsAnswer()

    async def read(self, request: ReadRowsRequest, deadline_ms: int) -> ReadRowsAnswer:
        if self.delay_s:
            await asyncio.sleep(self.delay_s)
        return ReadRowsAnswer(items=(), digest=b"local", is_whole=True)


@dataclass(kw_only=True)
class ClientsRig:
    clients: ShardClients
    local: LocalStub
    transport: MemoryTransport
    tasks: asyncio.TaskGroup

    async def serve(self, target: Replica, address: Address) -> list[WriteRowsRequest]:
        """A shard that answers there, and what it was sent."""
        taken: list[WriteRowsRequest] = []

        def write(request: WriteRowsRequest, _call: IncomingCall) -> WriteRowsAnswer:
            taken.append(request)
            return WriteRowsAnswer()

        def read(_request: ReadRowsRequest, _call: IncomingCall) -> ReadRowsAnswer:
            return ReadRowsAnswer(items=(), digest=str(address).encode(), is_whole=True)

        server = Server(self.tasks, introduction(target.host.int), discard_event, LIMITS)
        server.serve(WRITE_ROWS, write)
        server.serve(READ_ROWS, read)
        await self.transport.listen(address, server.accept)
        return taken


@asynccontextmanager
async def running(snapshot: Snapshot = TWO_NODES) -> AsyncIterator[ClientsRig]:
    transport, local = MemoryTransport(), LocalStub()
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        context = PeersContext(
            transport=transport, rng=SimRng("test"), introduction=introduction(1), limits=LIMITS, report=discard_event
        )
        addresses = ShardAddresses(
            own=OWN.host,
            port_first=7010,
            socket_of=lambda shard: Address(f"/run/shard-{shard}.sock"),
            own_shard=OWN.shard,
        )
        clients = ShardClients(tasks, context, addresses, local)
        clients.follow(snapshot)
        yield ClientsRig(clients=clients, local=local, transport=transport, tasks=tasks)
        clients.close("done")


async def test_the_own_shard_is_asked_directly() -> None:
    async with running() as rig:
        assert await rig.clients.write(OWN, WRITE, 1000) == WriteRowsAnswer()
        assert (await rig.clients.read(OWN, READ, 1000)).digest == b"local"
        assert rig.local.writes == 1
        assert rig.transport.attempts == 0


async def test_the_own_shard_is_bounded_by_the_deadline() -> None:
    async with running() as rig:
        rig.local.delay_s = 5.0
        with pytest.raises(DeadlineExceeded):
            await rig.clients.write(OWN, WRITE, 100)
        with pytest.raises(DeadlineExceeded):
            await rig.clients.read(OWN, READ, 100)


async def test_siblings_are_reached_by_socket_and_others_at_their_shards_port() -> None:
    async with running() as rig:
        sibling = await rig.serve(SIBLING, Address("/run/shard-0.sock"))
        other = await rig.serve(OTHER, Address("127.0.0.2", 7011))
        await rig.clients.write(SIBLING, WRITE, 1000)
        await rig.clients.write(OTHER, WRITE, 1000)
        assert (sibling, other) == ([WRITE], [WRITE])
        assert (await rig.clients.read(OTHER, READ, 1000)).digest == b"127.0.0.2:7011"
        assert rig.clients.refused == frozenset()


async def test_a_shard_that_takes_no_connection_is_known_as_refused_until_it_does() -> None:
    async with running() as rig:
        with pytest.raises(Unreachable):
            await rig.clients.write(OTHER, WRITE, 1000)
        assert rig.clients.refused == frozenset({OTHER})
        taken = await rig.serve(OTHER, Address("127.0.0.2", 7011))
        await rig.clients.write(OTHER, WRITE, 1000)
        assert taken == [WRITE]
        assert rig.clients.refused == frozenset()


async def test_nodes_that_left_are_no_longer_reached_or_counted_as_refusing() -> None:
    async with running() as rig:
        with pytest.raises(Unreachable):
            await rig.clients.write(OTHER, WRITE, 1000)
        gone = replace(TWO_NODES, nodes=cluster(node(1, shard_count=2), node(2, state=NodeState.LEFT)).nodes)
        rig.clients.follow(gone)
        assert rig.clients.refused == frozenset()
        with pytest.raises(Unreachable, match="no address"):
            await rig.clients.write(OTHER, WRITE, 1000)
