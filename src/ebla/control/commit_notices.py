"""Which messages may wait a moment: appends that carry no entries and only tell the commit index.

After each commit the core tells it to every peer, which answers. Under load the next append follows at once and tells
the same, so the notice would be work for nothing; without load the peers can wait. A notice that a later append covers
is never sent. To lose or delay a message is always allowed, so nothing here can break a promise of Raft.
"""

from collections.abc import Sequence

from ebla.raft.messages import Append, Message, PeerId

HOLD_MS = 2
EAGER_MS = 100
"""A peer whose proposals the leader takes up waits for their commit. So long after its last one it is told at once."""


class CommitNotices:
    """Pure: the caller brings the time and sees to it that `take` is called once a hold is over."""

    def __init__(self) -> None:
        self._held: dict[PeerId, Append] = {}
        self._eager_until_ms: dict[PeerId, int] = {}

    @property
    def holds(self) -> bool:
        return bool(self._held)

    def hurry(self, peer: PeerId, now_ms: int) -> None:
        self._eager_until_ms[peer] = now_ms + EAGER_MS

    def sift(self, messages: Sequence[Message], now_ms: int) -> list[Message]:
        """Those of the messages that leave now, and what was held and must leave before them."""
        leaving: list[Message] = []
        for message in messages:
            if type(message) is not Append:
                leaving.append(message)
                continue
            before = self._held.pop(message.to, None) if self._held else None
            if before is not None and not _covers(message, before):
                leaving.append(before)
            if message.entries or self._eager_until_ms.get(message.to, 0) > now_ms:
                leaving.append(message)
            else:
                self._held[message.to] = message
        return leaving

    def take(self) -> list[Message]:
        held, self._held = self._held, {}
        return list(held.values())


def _covers(later: Append, before: Append) -> bool:
    """Whoever takes the later one in knows all that the one before tells."""
    return later.term >= before.term and later.prev_index >= before.prev_index and later.commit >= before.commit
