"""A proxy to a Flight server that cuts the connection once, after so many bytes."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.unit.runtime.tls_rig import free_address

from ebla.model.identity import Address


class CutProxy:
    def __init__(self, behind: Address, cut_after_bytes: int) -> None:
        self._behind = behind
        self._left_bytes = cut_after_bytes
        self.cuts = 0
        self.connections = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        there_reader, there_writer = await asyncio.open_connection(self._behind.host, self._behind.port)
        ways = [
            asyncio.ensure_future(self._carry(reader, there_writer, (writer, there_writer))),
            asyncio.ensure_future(self._carry(there_reader, writer, (writer, there_writer))),
        ]
        try:
            await asyncio.gather(*ways, return_exceptions=True)
        finally:
            for end in (writer, there_writer):
                end.transport.abort()

    async def _carry(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, ends: tuple[asyncio.StreamWriter, ...]
    ) -> None:
        while data := await reader.read(1 << 16):
            self._left_bytes -= len(data)
            if self._left_bytes < 0 and not self.cuts:
                self.cuts += 1
                for end in ends:
                    end.transport.abort()
                return
            writer.write(data)
            await writer.drain()


@asynccontextmanager
async def cut_proxy(behind: Address, cut_after_bytes: int) -> AsyncIterator[tuple[CutProxy, Address]]:
    proxy = CutProxy(behind, cut_after_bytes)
    server = await asyncio.start_server(proxy.serve, free_address().host, 0)
    host, port = server.sockets[0].getsockname()[:2]
    try:
        yield proxy, Address(host, port)
    finally:
        server.close()
