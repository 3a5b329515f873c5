"""The network as links that carry whole frames.

A link is one connection. The real one (TCP with TLS, or a Unix socket) keeps order and loses frames only by closing.
The simulated one may also lose, repeat, delay and reorder single frames, which is more than TCP does, so users of links
may rely only on this: a frame arrives complete or not at all.
"""

from collections.abc import Callable
from typing import Protocol

from ebla.model.identity import Address, HostId


class LinkEvents(Protocol):
    """Callbacks of a link's owner. Called on the loop, never after `link_closed`."""

    def frame_received(self, frame: bytes) -> None: ...

    def link_closed(self, cause: str) -> None:
        """Called exactly once. `cause` is for people."""
        ...


class Link(Protocol):
    @property
    def peer_address(self) -> Address: ...

    @property
    def peer_host(self) -> HostId | None:
        """The host in the peer's certificate; None inside a node and without a certificate."""
        ...

    def send(self, frame: bytes) -> None:
        """Queues the frame; frames of one loop iteration are sent together. Silently dropped on a closed link."""
        ...

    def send_now(self, frame: bytes) -> None:
        """As `send`, but sent at once if nothing else is queued: for a frame that no other frame of this loop iteration
        will join."""
        ...

    @property
    def queued_bytes(self) -> int:
        """Bytes accepted by `send` and not yet passed to the network: the measure for backpressure."""
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
        """Accepts no more links. Open ones stay."""
        ...


OpenLink = Callable[[Link], LinkEvents]


class Transport(Protocol):
    async def connect(self, address: Address, on_open: OpenLink) -> Link:
        """Raises `ebla.model.errors.Unreachable`. Bounded by the caller's timeout."""
        ...

    async def listen(self, address: Address, on_open: OpenLink) -> Listener:
        """Raises `ebla.model.errors.InvalidRequest` where the address is in use or not ours."""
        ...
