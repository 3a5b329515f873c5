"""A joining node is served by the authority service alone, for a limited time."""

import asyncio
import time
from pathlib import Path

from tests.async_tests import real_time, runs_in
from tests.unit.runtime.tls_rig import Cluster, Reports, free_address, introduction

from ebla.model.identity import Address
from ebla.runtime.authority_handover import JOIN_LIMITS, JoinTransport
from ebla.runtime.system_rng import SystemRng
from ebla.runtime.tcp_transport import TcpTransport
from ebla.runtime.tls import JoiningNodeTls
from ebla.wire.client_connection import ConnectionTarget
from ebla.wire.frames import Lane
from ebla.wire.peers import PeersContext, connect
from ebla.wire.server import Server

STAY_MS = 300


@runs_in(real_time)
async def test_nobody_stays_at_the_door(tmp_path: Path) -> None:
    """A peer that introduces itself and then sends nothing would take the slot of a joining node for ever."""
    async with (
        asyncio.timeout(60),
        TcpTransport(Cluster(tmp_path).tls(1), Reports()) as transport,
        TcpTransport(JoiningNodeTls(None), Reports()) as newcomer,
        asyncio.TaskGroup() as tasks,
    ):
        join_server = Server(tasks, introduction(1), Reports(), JOIN_LIMITS)
        main = Server(tasks, introduction(1), Reports())
        address = Address(free_address().host, 7000)
        join_transport = JoinTransport(transport, address, join_server.accept, STAY_MS)
        await join_transport.listen(address, main.accept)
        context = PeersContext(transport=newcomer, rng=SystemRng(), introduction=introduction(2), report=Reports())
        began = time.monotonic()
        caller, _ = await connect(context, address, ConnectionTarget(Lane.JOIN))
        assert (join_server.links_open, main.links_open) == (1, 0)
        assert await caller.wait_closed() == "the peer ended the connection"
        assert time.monotonic() - began > STAY_MS / 1000 / 2
