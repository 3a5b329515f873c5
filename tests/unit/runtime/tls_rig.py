"""Folders with certificates, transports and servers on a loopback address of the test's own."""

import asyncio
import datetime
import os
import random
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from tests.unit.wire.rig import ECHO, SLOW, EchoAnswer, EchoRequest

from ebla.model.identity import Address, ClusterId, HostId
from ebla.runtime.data_folder import NodeIdentity
from ebla.runtime.system_clock import SystemClock
from ebla.runtime.system_rng import SystemRng
from ebla.runtime.tcp_transport import TcpTransport, TlsContexts, TransportLimits
from ebla.runtime.tls import (
    NodeTls,
    TlsFolder,
    Validity,
    make_authority,
    make_node_certificate,
)
from ebla.wire.client_connection import ConnectionTarget, RpcClientConnection
from ebla.wire.frames import Introduction, Lane
from ebla.wire.limits import WireLimits
from ebla.wire.peers import PeersContext, connect
from ebla.wire.server import IncomingCall, Server

CLUSTER = ClusterId(uuid.UUID(int=0xC))
NAME = "palace"


def host(number: int) -> HostId:
    return HostId(uuid.UUID(int=number))


def introduction(number: int) -> Introduction:
    return Introduction(host=host(number), cluster=CLUSTER, cluster_name=NAME)


def free_address() -> Address:
    """A loopback host that no other test has, and a port the kernel picks when port 0 is listened on."""
    source = random.Random(os.urandom(8))
    return Address(f"127.{source.randrange(1, 255)}.{source.randrange(1, 255)}.{source.randrange(1, 255)}", 0)


class Reports:
    def __init__(self) -> None:
        self.events: list[tuple[str, Mapping[str, object]]] = []
        self._reported = asyncio.Event()

    def __call__(self, event: str, details: Mapping[str, object]) -> None:
        self.events.append((event, details))
        self._reported.set()

    async def wait_for_report(self) -> None:
        """Returns once there is an event."""
        await self._reported.wait()

    def text(self) -> str:
        return "\n".join(f"{name} {dict(details)}" for name, details in self.events)


class Cluster:
    """One authority and as many nodes' folders as asked for."""

    def __init__(self, path: Path, cluster: ClusterId = CLUSTER) -> None:
        self.path = path
        self.cluster = cluster
        self.authority = make_authority(cluster, NAME, Validity.days(SystemClock(), 10))

    def folder(self, number: int, *, days: int = 5, name_host: int | None = None) -> TlsFolder:
        """`days` may be negative (expired), `name_host` another host than the folder's."""
        folder = TlsFolder(self.path / f"tls-{number}")
        folder.store_authority(self.authority)
        now = datetime.datetime.now(datetime.UTC)
        validity = Validity(now - datetime.timedelta(days=10), now + datetime.timedelta(days=days))
        named = host(number if name_host is None else name_host)
        folder.store_node_certificate(make_node_certificate(self.authority, named, self.cluster, validity))
        return folder

    def tls(self, number: int, *, days: int = 5, name_host: int | None = None) -> NodeTls:
        return NodeTls(self.folder(number, days=days, name_host=name_host))


def identity(number: int) -> NodeIdentity:
    return NodeIdentity(host(number), CLUSTER, NAME)


class Served:
    """A server of host 1 behind a transport."""

    def __init__(self, tasks: asyncio.TaskGroup, transport: TcpTransport, limits: WireLimits) -> None:
        self.reports = Reports()
        self.transport = transport
        self.limits = limits
        self.server = Server(tasks, introduction(1), self.reports, limits)
        self.server.serve(ECHO, self.echo)
        self.server.serve(SLOW, self.slow)
        self.address = Address("", 0)
        self.release = asyncio.Event()

    def echo(self, request: EchoRequest, call: IncomingCall) -> EchoAnswer:
        return EchoAnswer(request.text)

    async def slow(self, request: EchoRequest, call: IncomingCall) -> EchoAnswer:
        await self.release.wait()
        return EchoAnswer(request.text)


@asynccontextmanager
async def serving(
    tls: TlsContexts | None,
    *,
    plain: bool = False,
    address: Address | None = None,
    limits: WireLimits | None = None,
    transport_limits: TransportLimits | None = None,
) -> AsyncIterator[Served]:
    reports = Reports()
    async with asyncio.timeout(60):
        async with TcpTransport(tls, reports, transport_limits or TransportLimits(), plain=plain) as transport:
            async with asyncio.TaskGroup() as tasks:
                served = Served(tasks, transport, limits or WireLimits())
                served.reports = served.server.report = reports
                listening = await transport.listen(address or free_address(), served.server.accept)
                served.address = listening.address
                yield served
                served.release.set()
                served.server.close("the test is over")


@asynccontextmanager
async def calling(
    tls: TlsContexts | None, served: Served, *, number: int = 2, plain: bool = False, expect: HostId | None = None
) -> AsyncIterator[tuple[RpcClientConnection, Reports]]:
    reports = Reports()
    async with TcpTransport(tls, reports, plain=plain) as transport:
        context = PeersContext(
            transport=transport,
            rng=SystemRng(),
            introduction=introduction(number),
            limits=served.limits,
            report=reports,
        )
        caller, _ = await connect(context, served.address, ConnectionTarget(Lane.CONTROL, expect))
        yield caller, reports
        caller.close("the test is over")
