"""A server for the fuzz test, in a process of its own: `python -m tests.cluster.wire_fuzz_server HOST FOLDER`.

It listens on two ports, without and with mutual TLS, prints them, and answers how much memory it uses.
"""

import asyncio
import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec
import psutil
from tests.unit.runtime.tls_rig import introduction
from tests.unit.wire.rig import ECHO, SLOW, EchoAnswer, EchoRequest

from ebla.model.identity import Address
from ebla.runtime.tcp_transport import TcpTransport, TransportLimits
from ebla.runtime.tls import NodeTls, TlsFolder
from ebla.wire.frames import Lane
from ebla.wire.limits import WireLimits
from ebla.wire.server import IncomingCall, Server
from ebla.wire.verbs import Verb

LIMITS = WireLimits(
    hello_ms=1000, unintroduced_links_max=50, served_links_max=200, answer_queue_bytes_max=8 * 1024 * 1024
)
TRANSPORT_LIMITS = TransportLimits(handshake_ms=1000, write_stall_ms=1000)


class HealthRequest(msgspec.Struct, frozen=True, array_like=True):
    pass


class HealthAnswer(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    rss_bytes: int
    links: int
    reports: dict[str, int]
    problems: tuple[str, ...]


HEALTH = Verb(number=9301, name="health", lane=Lane.CONTROL, request=HealthRequest, answer=HealthAnswer)


async def main(host: str, folder: str) -> None:
    reports: dict[str, int] = {}
    problems: list[str] = []

    def report(event: str, _details: Mapping[str, object]) -> None:
        reports[event] = reports.get(event, 0) + 1

    def problem(_loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        problems.append(str(context))

    async def slow(request: EchoRequest, _call: IncomingCall) -> EchoAnswer:
        await asyncio.sleep(30)
        return EchoAnswer(request.text)

    def health(_request: HealthRequest, _call: IncomingCall) -> HealthAnswer:
        rss = psutil.Process().memory_info().rss
        return HealthAnswer(rss_bytes=rss, links=server.links_open, reports=reports, problems=tuple(problems[:5]))

    asyncio.get_running_loop().set_exception_handler(problem)
    tls = NodeTls(TlsFolder(Path(folder)))
    async with (
        TcpTransport(None, report, TRANSPORT_LIMITS, plain=True) as plain,
        TcpTransport(tls, report, TRANSPORT_LIMITS) as encrypted,
        asyncio.TaskGroup() as tasks,
    ):
        server = Server(tasks, introduction(1), report, LIMITS)
        server.serve(ECHO, lambda request, _call: EchoAnswer(request.text))
        server.serve(SLOW, slow)
        server.serve(HEALTH, health)
        for transport in (plain, encrypted):
            print((await transport.listen(Address(host, 0), server.accept)).address.port, flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2]))
