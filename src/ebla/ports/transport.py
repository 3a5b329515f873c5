"""The network as links that carry whole frames.

A link is one connection. The real one (TCP with TLS, or a Unix socket) keeps order and loses only by ending. The
simulated one may also lose, repeat, delay and reorder single frames, which is more than TCP does, so what stands on
links must not rely on more than: a frame arrives whole or not at all.
"""

from collections.abc import Callable
from typing import Protocol

from ebla.model.identity import Address, HostId


class LinkEvents(Protocol):
    """What the owner of a link must answer. Called on the loop, never after `link_closed`."""

    def frame_received(self, frame: bytes) -> None: ...

    def link_closed(self, cause: str) -> None:
        """Exactly once. `cause` is for people."""
        ...


class Link(Protocol):
    @property
    def peer_address(self) -> Address: ...

    @property
    def peer_host(self) -> HostId | None:
        """Who the peer's certificate says it is; None inside a node and where there is no certificate."""
        ...

    def send(self, frame: bytes) -> None:
        """Queues the frame; frames of one loop turn leave together. Silently dropped on a closed link."""
        ...

    def send_now(self, frame: bytes) -> None:
        """As `send`, but it leaves at once where nothing else is queued: for one that nothing else of its turn will
        join."""
        ...

    @property
    def queued_bytes(self) -> int:
        """Bytes accepted by `send` and not yet taken by the network: what back-pressure is decided by."""
        ...

    async def wait_drained(self) -> None:
        """Returns once the queue is below its low-water mark or the link is closed."""
        ...

    def close(self, cause: str) -> None:
        """Ends the link; `link_closed` follows on both sides."""
        ...


class Listener(Protocol):
    @property
    def address(self) -> Address: ...

    async def close(self) -> None:
        """Takes no more links. Those that are open stay."""
        ...


OpenLink = Callable[[Link], LinkEvents]


class Transport(Protocol):
    async def connect(self, address: Address, on_open: OpenLink) -> Link:
        """Raises `ebla.model.errors.Unreachable`. Bounded by the caller's timeout."""
        ...

    async def listen(self, address: Address, on_open: OpenLink) -> Listener:
        """Raises `ebla.model.errors.InvalidRequest` where the address is in use or not ours."""
        ...
