"""The control address with a second door: nodes that have no certificate yet are led to the authority's desk.

Anybody who can reach the address can come through this door, so it is small: few at once, little memory each (the
transport lets nobody without a certificate send a large frame), and nobody stays.
"""

import asyncio

from ebla.model.identity import Address
from ebla.ports.transport import Link, LinkEvents, Listener, OpenLink
from ebla.runtime.tcp_transport import TcpTransport
from ebla.wire.limits import WireLimits

JOIN_LIMITS = WireLimits(
    frame_bytes_max=64 * 1024,
    running_requests_max=4,
    answer_queue_bytes_max=256 * 1024,
    served_links_max=64,
    unintroduced_links_max=32,
)
JOIN_LINK_MS = 10_000
"""Far longer than two questions take. Without it, 64 who greet and then say nothing would keep every newcomer out."""


class JoinTransport:
    """`ports.transport.Transport` of a control process. Those at the second door never meet its other servers."""

    def __init__(
        self, transport: TcpTransport, address: Address, on_join: OpenLink, stay_ms: int = JOIN_LINK_MS
    ) -> None:
        self._transport = transport
        self._address = address
        self._on_join = on_join
        self._stay_ms = stay_ms

    async def connect(self, address: Address, on_open: OpenLink) -> Link:
        return await self._transport.connect(address, on_open)

    async def listen(self, address: Address, on_open: OpenLink) -> Listener:
        on_join = self._for_a_while if address == self._address else None
        return await self._transport.listen(address, on_open, on_join)

    def _for_a_while(self, link: Link) -> LinkEvents:
        cause = f"whoever joins has {self._stay_ms} ms"
        asyncio.get_running_loop().call_later(self._stay_ms / 1000, link.close, cause)
        return self._on_join(link)
