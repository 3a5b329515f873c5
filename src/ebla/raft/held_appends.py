"""Whom a leader sends its appends at once, and who has them a moment later, several in one. Pure.

A majority decides, so only as many peers as make one with the leader itself are on a commit's way. They, the ones that
were first to acknowledge lately, are sent every append at once. The others' appends are held for a moment and leave as
one, which is written with one sync and answered once: nearly all of a peer's work for a lone commit, on either side, is
spared. Raft lets any message be late, so no promise of it can be broken here. What it may cost is that moment, where a
peer that was quick has become slow: then everybody is sent everything, until it has shown again who is quick.

Never held: what a peer needs that catches up, and whatever is for one that waits (`waiting_peers.py`).
"""

from collections import Counter
from collections.abc import Sequence

import msgspec

from ebla.raft.messages import Append, AppendResponse, Membership, Message, PeerId

APPEND_HOLD_MS = 10
ROUNDS_TO_RANK = 16
"""Acknowledgements that were the first of their index, before the quick are told from the others."""
LATE_HOLDS_MAX = 1
"""In a row. Every disk is late now and then."""
HELD_BYTES_MAX = 64 * 1024


class HeldAppends:
    """What one leader holds; to be given up (`forget`) with the leadership."""

    def __init__(self, own: PeerId) -> None:
        self._own = own
        self._held: dict[PeerId, tuple[Append, int]] = {}
        self._later: frozenset[PeerId] = frozenset()
        """Peers that are not on a commit's way. Empty: it is not known who is."""
        self._acknowledged: dict[PeerId, int] = {}
        self._rounds = 0
        self._in_time: Counter[PeerId] = Counter()
        """How often each was among as many as a commit needs."""
        self._late_holds = 0

    @property
    def has_ranking(self) -> bool:
        """Then a commit has no way but through the leader's own disk."""
        return bool(self._later)

    @property
    def is_empty(self) -> bool:
        return not self._held

    def forget(self) -> None:
        """What is held is lost, as any message may be."""
        self._held.clear()
        self._acknowledged.clear()
        self.reset_ranking()

    def reset_ranking(self) -> None:
        self._later = frozenset()
        self._rounds = 0
        self._in_time.clear()
        self._late_holds = 0

    def acknowledged(self, answer: AppendResponse, membership: Membership) -> None:
        sender, index = answer.sender, answer.index
        known = self._acknowledged
        # Two majorities decide while members change: who is on the way of both is not worth finding out.
        if self._later or answer.rejected or membership.is_joint or index <= known.get(sender, 0):
            return
        others = [peer for peer in membership.voters if peer != self._own]
        if sender not in others:
            return
        before = sum([known.get(peer, 0) >= index for peer in others])
        known[sender] = index
        needed = len(membership.voters) // 2
        if before < needed:
            self._in_time[sender] += 1
        if before == 0:
            self._rounds += 1
        # Whoever was never in time is not chosen, for it may be dead.
        quick = {peer for peer, _ in self._in_time.most_common(needed)}
        if self._rounds >= ROUNDS_TO_RANK and len(quick) == needed:
            self._later = frozenset(membership.all_members()) - quick

    def hold(self, peer: PeerId, messages: Sequence[Message], last_index: int) -> bool:
        """False: to be sent now, behind what is held for the peer."""
        if peer not in self._later or len(messages) != 1:
            return False
        append = messages[0]
        if type(append) is not Append:
            return False
        size = sum([len(entry.data) for entry in append.entries])
        held, held_bytes = self._held.get(peer, (None, 0))
        if size + held_bytes > HELD_BYTES_MAX:
            return False
        if held is None:
            # An empty one probes or tells what is committed; one that does not reach the end is for a peer behind.
            if not append.entries or append.entries[-1].index != last_index:
                return False
            self._held[peer] = (append, size)
            return True
        if held.entries[-1].index != append.prev_index or held.term != append.term:
            return False
        entries = held.entries + append.entries
        self._held[peer] = (msgspec.structs.replace(held, commit=append.commit, entries=entries), held_bytes + size)
        return True

    def take(self, peer: PeerId) -> Append | None:
        append, _ = self._held.pop(peer, (None, 0))
        return append

    def take_all(self, committed: int) -> list[Append]:
        """The moment is over. Where what was held has not been committed without those it was held for, they are needed
        after all."""
        appends = [append for append, _ in self._held.values()]
        self._held.clear()
        if not appends:
            return []  # taken one by one meanwhile, which shows nothing
        is_late = any(append.entries[0].index > committed for append in appends)
        self._late_holds = self._late_holds + 1 if is_late else 0
        if self._late_holds > LATE_HOLDS_MAX:
            self.reset_ranking()
        return appends
