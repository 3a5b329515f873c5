"""An in-memory transport: links that carry frames in order, one loop turn later, and can be held or cut."""

import asyncio
import random
import uuid
from collections.abc import MutableSequence, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import pytest

from ebla.model.errors import Unreachable
from ebla.model.identity import Address, ClusterId, HostId
from ebla.ports.transport import LinkEvents, OpenLink
from ebla.wire.frames import Introduction

T = TypeVar("T")

CLUSTER = ClusterId(uuid.UUID(int=0xC))


class SeededChance:
    def __init__(self, seed: int = 1) -> None:
        self._random = random.Random(seed)

    def random(self) -> float:
        return self._random.random()

    def randrange(self, start: int, stop: int) -> int:
        return self._random.randrange(start, stop)

    def choice(self, options: Sequence[T]) -> T:
        return self._random.choice(options)

    def shuffle(self, items: MutableSequence[T]) -> None:
        self._random.shuffle(items)

    def bytes(self, count: int) -> bytes:
        return self._random.randbytes(count)

    def uuid(self) -> uuid.UUID:
        return uuid.UUID(bytes=self._random.randbytes(16), version=4)


class MemoryLink:
    """`held` keeps frames in the queue, as a peer does that does not read."""

    def __init__(self, address: Address, peer_host: HostId | None) -> None:
        self._address = address
        self._peer_host = peer_host
        self.other: MemoryLink | None = None
        self.events: LinkEvents | None = None
        self.open = True
        self.held = False
        self.queue: list[bytes] = []
        self.sent: list[bytes] = []

    @property
    def peer_address(self) -> Address:
        return self._address

    @property
    def peer_host(self) -> HostId | None:
        return self._peer_host

    @property
    def queued_bytes(self) -> int:
        return sum(map(len, self.queue))

    def send(self, frame: bytes) -> None:
        if self.open:
            self.sent.append(frame)
            self.queue.append(frame)
            asyncio.get_running_loop().call_soon(self.flush)

    def flush(self) -> None:
        if self.held:
            return
        queue, self.queue = self.queue, []
        for frame in queue:
            if self.other is not None and self.other.open and self.other.events is not None:
                self.other.events.frame_received(frame)

    async def wait_drained(self) -> None:
        while self.queue and self.open:
            await asyncio.sleep(0)

    def close(self, cause: str) -> None:
        asyncio.get_running_loop().call_soon(self._end, cause)

    def _end(self, cause: str) -> None:
        for side in (self, self.other):
            if side is not None and side.open:
                side.open = False
                if side.events is not None:
                    side.events.link_closed(cause)


class MemoryListening:
    def __init__(self, transport: "MemoryTransport", address: Address) -> None:
        self._transport = transport
        self._address = address

    @property
    def address(self) -> Address:
        return self._address

    async def close(self) -> None:
        self._transport.listeners.pop(self._address, None)


@dataclass
class MemoryTransport:
    listeners: dict[Address, OpenLink] = field(default_factory=dict)
    links: list[MemoryLink] = field(default_factory=list)
    attempts: int = 0
    certificate_of_server: HostId | None = None
    certificate_of_client: HostId | None = None

    async def connect(self, address: Address, on_open: OpenLink) -> MemoryLink:
        self.attempts += 1
        await asyncio.sleep(0)
        if address not in self.listeners:
            raise Unreachable(f"{address}: nobody listens")
        near = MemoryLink(address, self.certificate_of_server)
        far = MemoryLink(Address("client", 1), self.certificate_of_client)
        near.other, far.other = far, near
        self.links += [near, far]
        far.events = self.listeners[address](far)
        near.events = on_open(near)
        return near

    async def listen(self, address: Address, on_open: OpenLink) -> MemoryListening:
        self.listeners[address] = on_open
        return MemoryListening(self, address)


@pytest.fixture
def transport() -> MemoryTransport:
    return MemoryTransport()


@pytest.fixture
def introduce() -> "type[_Introduce]":
    return _Introduce


class _Introduce:
    """`introduce.host(2)` is what host 2 says of itself."""

    @staticmethod
    def host(number: int, **changes: object) -> Introduction:
        fields: dict[str, object] = {
            "host": HostId(uuid.UUID(int=number)),
            "cluster": CLUSTER,
            "cluster_name": "palace",
            **changes,
        }
        return Introduction(**fields)  # type: ignore[arg-type]  # fields are checked by the tests that name them
