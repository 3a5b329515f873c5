"""When a leader tells its peers what is committed.

Under load the next append follows at once and tells it, so a message of its own would be work for nothing, for either
side; without load the peers can wait a moment. To delay it is always allowed, so nothing here can break a promise of
Raft. A peer that waits (`waiting_peers.py`) is told at once.
"""

import asyncio
from collections.abc import Callable

from ebla.raft.events import SendCommit
from ebla.raft.waiting_peers import WaitingPeers

HOLD_MS = 2


class CommitNotices:
    """`is_told`: whether nobody has to hear of an index any more, which spares a turn for every moment under load."""

    def __init__(
        self, post: Callable[[SendCommit], None], waiting: WaitingPeers, is_told: Callable[[int], bool]
    ) -> None:
        self._post = post
        self._waiting = waiting
        self._is_told = is_told
        self._held = 0
        """0: nothing is held back."""
        self._newest = 0

    def committed(self, index: int, now_ms: int) -> None:
        for peer in self._waiting.now(now_ms):
            self._post(SendCommit(index, peer))
        self._newest = index
        if not self._held:
            self._hold(index)

    def _hold(self, index: int) -> None:
        self._held = index
        asyncio.get_running_loop().call_later(HOLD_MS / 1000, self._hold_ends)

    def _hold_ends(self) -> None:
        index, self._held = self._held, 0
        if not self._is_told(index):
            self._post(SendCommit(index))
        # What was committed meanwhile has a moment of its own: the next append may tell it.
        if self._newest > index:
            self._hold(self._newest)
