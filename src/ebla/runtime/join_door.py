"""The control address with a second door: nodes that have no certificate yet are led to the authority's desk."""

from ebla.model.identity import Address
from ebla.ports.transport import Link, Listening, OpenLink
from ebla.runtime.tcp_transport import TcpTransport


class WithJoinDoor:
    """`ports.transport.Transport` of a control process. Those at the second door never meet its other servers."""

    def __init__(self, transport: TcpTransport, address: Address, on_join: OpenLink) -> None:
        self._transport = transport
        self._address = address
        self._on_join = on_join

    async def connect(self, address: Address, on_open: OpenLink) -> Link:
        return await self._transport.connect(address, on_open)

    async def listen(self, address: Address, on_open: OpenLink) -> Listening:
        on_join = self._on_join if address == self._address else None
        return await self._transport.listen(address, on_open, on_join)
