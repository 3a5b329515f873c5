"""When a leader tells its peers what is committed.

Under load the next append follows at once and tells it, so a message of its own would be work for nothing, for either
side; without load the peers can wait a moment. To delay it is always allowed, so nothing here can break a promise of
Raft. A peer whose proposals the leader takes up waits for their commit, and is told at once.
"""

import asyncio
from collections.abc import Callable

from ebla.raft.events import TellCommit
from ebla.raft.messages import PeerId

HOLD_MS = 2
EAGER_MS = 100
"""So long after the last proposal of a peer it is taken to wait for another."""


class CommitNotices:
    def __init__(self, post: Callable[[TellCommit], None]) -> None:
        self._post = post
        self._eager_until_ms: dict[PeerId, int] = {}
        self._held = 0
        """0: nothing is held back."""
        self._newest = 0

    def hurry(self, peer: PeerId, now_ms: int) -> None:
        self._eager_until_ms[peer] = now_ms + EAGER_MS

    def committed(self, index: int, now_ms: int) -> None:
        for peer, until_ms in self._eager_until_ms.items():
            if until_ms > now_ms:
                self._post(TellCommit(index, peer))
        self._newest = index
        if not self._held:
            self._hold(index)

    def _hold(self, index: int) -> None:
        self._held = index
        asyncio.get_running_loop().call_later(HOLD_MS / 1000, self._hold_ends)

    def _hold_ends(self) -> None:
        index, self._held = self._held, 0
        self._post(TellCommit(index))
        # What was committed meanwhile has a moment of its own: the next append may tell it.
        if self._newest > index:
            self._hold(self._newest)
