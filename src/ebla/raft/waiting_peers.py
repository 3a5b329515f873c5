"""Which peers wait for what their leader does. Pure."""

from collections.abc import Iterator

from ebla.raft.messages import PeerId

WAITING_MS = 100
"""So long after the last time a peer asked for something it is taken to wait for more."""


class WaitingPeers:
    def __init__(self) -> None:
        self._until_ms: dict[PeerId, int] = {}

    def asked(self, peer: PeerId, now_ms: int) -> None:
        self._until_ms[peer] = now_ms + WAITING_MS

    def is_waiting(self, peer: PeerId, now_ms: int) -> bool:
        return self._until_ms.get(peer, now_ms) > now_ms

    def now(self, now_ms: int) -> Iterator[PeerId]:
        return (peer for peer, until_ms in self._until_ms.items() if until_ms > now_ms)
