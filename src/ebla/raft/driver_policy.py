"""When a Raft driver sends, syncs and applies what the core asks for. Pure: facts in, decisions out.

Raft allows any message to be late, so no decision here can break one of its promises. Each trades latency for work:

- **Fast peers.** A commit needs a majority, so only as many peers as form one with the leader are on its critical path.
  The voters that were recently among the first to acknowledge get every append at once. Appends to the others are held
  for `APPEND_HOLD_MS` and sent as one: the peer writes it with one sync and answers once, which saves nearly all the
  work of a lone commit on both sides. If a fast peer turns slow, a commit waits for that hold at most; then every peer
  gets every append at once until the ranking is known again.
- **Commit notices.** Under load the next append carries the commit index, so a message of its own would be wasted.
  Without load the peers can wait for `NOTICE_HOLD_MS`.
- **Waiting peers.** A peer that sent a proposal or a read within `WAITING_MS` waits for the result. Nothing is held
  back from it.
- **Turns.** Events are processed together in turns of the loop. A lone event gets a turn at once.
- **Order.** `EFFECT_ORDER` says in which order the effects of one batch are carried out, within the five rules of
  `effects.py`.
"""

import enum
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from ebla.raft.events import Propose, SendCommit
from ebla.raft.messages import Append, AppendResponse, EntryKind, Membership, Message, PeerId

APPEND_HOLD_MS = 10
NOTICE_HOLD_MS = 2
WAITING_MS = 100
"""How long after its last request a peer counts as waiting."""
ROUNDS_TO_RANK = 16
"""Acknowledgements that were the first of their index, before the peers are ranked."""
LATE_HOLDS_MAX = 1
"""In a row. Every disk is late now and then."""
HELD_BYTES_MAX = 64 * 1024
APPENDS_PER_SEND_MAX = 8
"""Messages of one turn for one peer are sent together, but not so many appends that they exceed a frame."""


class Step(enum.Enum):
    """One thing the driver does with a batch of effects."""

    WRITE = enum.auto()
    """Queue the log write; a write that needs no disk is done at once."""
    SYNC = enum.auto()
    """Start the queued writes now, so that the disk works while entries are applied."""
    APPLY = enum.auto()
    NOTIFY = enum.auto()
    """Decide when the peers learn of the commit index."""


class EffectsKind(NamedTuple):
    is_leader: bool
    needs_disk: bool
    """Without it, the write holds a commit index at most."""
    has_apply: bool


_FOLLOWER: Final = (Step.WRITE, Step.APPLY)
"""The leader waits for a follower's write; no client waits for what a follower applies."""

EFFECT_ORDER: Final[Mapping[tuple[bool, bool, bool], tuple[Step, ...]]] = {
    EffectsKind(True, True, True): (Step.WRITE, Step.SYNC, Step.APPLY, Step.NOTIFY),
    EffectsKind(True, True, False): (Step.WRITE, Step.NOTIFY),
    # Clients wait for what a leader applies; the commit index alone is not urgent.
    EffectsKind(True, False, True): (Step.APPLY, Step.WRITE, Step.NOTIFY),
    EffectsKind(True, False, False): (Step.WRITE, Step.NOTIFY),
    EffectsKind(False, True, True): _FOLLOWER,
    EffectsKind(False, True, False): _FOLLOWER,
    EffectsKind(False, False, True): _FOLLOWER,
    EffectsKind(False, False, False): _FOLLOWER,
}
"""By `EffectsKind`, or a plain tuple of its fields, which is cheaper to make. Messages go before all of these: the way
to the peers is the longest."""


class Timer(enum.Enum):
    """The value is the delay in milliseconds."""

    HELD_APPENDS = APPEND_HOLD_MS
    COMMIT_NOTICE = NOTICE_HOLD_MS


class PeerBatch(NamedTuple):
    """Messages that are sent to one peer together."""

    peer: PeerId
    messages: Sequence[Message]


class DriverPolicy:
    def __init__(self, own: PeerId) -> None:
        self._own = own
        self.timers: list[Timer] = []
        """To be started by the driver, which clears the list. When one expires: `held_due`, `notice_due`."""
        self._waiting_until_ms: dict[PeerId, int] = {}
        self._proposed_together = 0
        """Proposals in the last turn that had any."""
        # Fast peers.
        self._acknowledged: dict[PeerId, int] = {}
        self._rounds = 0
        self._in_time: Counter[PeerId] = Counter()
        """How often each peer was among as many as a commit needs."""
        self._slow: frozenset[PeerId] = frozenset()
        """Peers whose appends are held. Empty: the ranking is not known."""
        self._held: dict[PeerId, tuple[Append, int]] = {}
        self._hold_runs = False
        self._late_holds = 0
        # Commit notices.
        self._notice_index = 0
        """The commit index that a running timer will announce; 0: no timer runs."""
        self._commit_index = 0

    # ---- facts

    def peer_waits(self, peer: PeerId, now_ms: int) -> None:
        """The peer sent a proposal or a read."""
        self._waiting_until_ms[peer] = now_ms + WAITING_MS

    def status_changed(self) -> None:
        """Role or leader changed. Held appends are lost, as any message may be."""
        self._held.clear()
        self._acknowledged.clear()
        self.reset_ranking()

    def reset_ranking(self) -> None:
        self._slow = frozenset()
        self._rounds = 0
        self._in_time.clear()
        self._late_holds = 0

    def acknowledged(self, answer: AppendResponse, membership: Membership) -> None:
        sender, index = answer.sender, answer.index
        known = self._acknowledged
        # A joint configuration needs two quorums: do not try to pick peers that are fast for both.
        if self._slow or answer.rejected or membership.is_joint or index <= known.get(sender, 0):
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
        # A voter that was never in time is not picked: it may be dead.
        fast = {peer for peer, _ in self._in_time.most_common(needed)}
        if self._rounds >= ROUNDS_TO_RANK and len(fast) == needed:
            self._slow = frozenset(membership.all_members()) - fast

    # ---- turns and the disk

    def batch_proposals(self, proposals: Sequence[tuple[bytes, EntryKind]], bytes_max: int) -> Iterator[Propose]:
        self._proposed_together = len(proposals)
        return batch_proposals(proposals, bytes_max)

    def may_turn_now(self, *, is_pipelined: bool = False) -> bool:
        """Whether an event gets a turn at once, one step of the loop earlier, which for a lone event is much of its
        latency. Not while proposals come in crowds: the first of a crowd would get a sync of its own and every answer
        a turn. `is_pipelined`: it is a proposal, and entries before it are not committed yet."""
        return self._proposed_together <= 1 and not is_pipelined

    def may_block_for_sync(self, *, is_leader: bool, is_idle: bool) -> bool:
        """Whether the loop may wait for a short sync. Only while there is nothing else to do; and on a leader that
        sends to every peer two others may acknowledge before its own disk does, which a blocked loop would not see."""
        return is_idle and (not is_leader or bool(self._slow))

    def defers_apply(self, *, is_leader: bool, has_queued_writes: bool) -> bool:
        """A follower writes and answers first, since its leader waits for that."""
        return has_queued_writes and not is_leader

    # ---- appends

    @property
    def has_ranking(self) -> bool:
        return bool(self._slow)

    def to_send(self, messages: Sequence[Message], last_index: int, now_ms: int) -> list[PeerBatch]:
        """What leaves now, in order. The rest is held until `held_due`. `last_index`: of this peer's log."""
        if len(messages) == 1 and not self._slow and not self._held:
            return [PeerBatch(messages[0].to, messages)]
        by_peer: dict[PeerId, list[Message]] = {}
        for message in messages:
            if message.to in by_peer:
                by_peer[message.to].append(message)
            else:
                by_peer[message.to] = [message]
        batches: list[PeerBatch] = []
        for peer, several in by_peer.items():
            # Held appends go before newer messages, even if the ranking was reset in between.
            if self._slow or self._held:
                if not self._is_waiting(peer, now_ms) and self._hold(peer, several, last_index):
                    continue
                held = self._held.pop(peer, None)
                if held is not None:
                    batches.append(PeerBatch(peer, (held[0],)))
            batches += [
                PeerBatch(peer, several[start : start + APPENDS_PER_SEND_MAX])
                for start in range(0, len(several), APPENDS_PER_SEND_MAX)
            ]
        return batches

    def held_due(self, commit_index: int) -> list[PeerBatch]:
        """The hold is over. Entries that are still not committed needed the peers they were held from."""
        self._hold_runs = False
        appends = [append for append, _ in self._held.values()]
        self._held.clear()
        if not appends:
            return []  # each was sent with a later message, which proves nothing
        is_late = any(append.entries[0].index > commit_index for append in appends)
        self._late_holds = self._late_holds + 1 if is_late else 0
        if self._late_holds > LATE_HOLDS_MAX:
            self.reset_ranking()
        return [PeerBatch(append.to, (append,)) for append in appends]

    def _is_waiting(self, peer: PeerId, now_ms: int) -> bool:
        return self._waiting_until_ms.get(peer, now_ms) > now_ms

    def _hold(self, peer: PeerId, messages: Sequence[Message], last_index: int) -> bool:
        """False: send it now, behind what is held for the peer."""
        if peer not in self._slow or len(messages) != 1:
            return False
        append = messages[0]
        if type(append) is not Append:
            return False
        size = sum([len(entry.data) for entry in append.entries])
        held, held_bytes = self._held.get(peer, (None, 0))
        if size + held_bytes > HELD_BYTES_MAX:
            return False
        if held is None:
            # An empty append probes or carries the commit index; one that ends before our log is for a peer behind.
            if not append.entries or append.entries[-1].index != last_index:
                return False
            self._held[peer] = (append, size)
        else:
            if held.entries[-1].index != append.prev_index or held.term != append.term:
                return False
            entries = held.entries + append.entries
            self._held[peer] = (msgspec.structs.replace(held, commit=append.commit, entries=entries), held_bytes + size)
        if not self._hold_runs:
            self._hold_runs = True
            self.timers.append(Timer.HELD_APPENDS)
        return True

    # ---- commit notices

    def committed(self, index: int, now_ms: int) -> list[SendCommit]:
        """The peers that learn of this commit index at once. The others do by the next append, or at `notice_due`."""
        assert index >= self._commit_index, "the commit index never decreases"
        self._commit_index = index
        if not self._notice_index:
            self._start_notice(index)
        return [SendCommit(index, peer) for peer, until_ms in self._waiting_until_ms.items() if until_ms > now_ms]

    def notice_due(self, has_sent_commit: Callable[[int], bool]) -> SendCommit | None:
        """The notice for all peers that have not been sent the index by now; None where there is none, which saves a
        turn under load."""
        index, self._notice_index = self._notice_index, 0
        if self._commit_index > index:
            # A later commit gets a delay of its own: the next append may carry it.
            self._start_notice(self._commit_index)
        return None if has_sent_commit(index) else SendCommit(index)

    def _start_notice(self, index: int) -> None:
        self._notice_index = index
        self.timers.append(Timer.COMMIT_NOTICE)


def batch_proposals(proposals: Sequence[tuple[bytes, EntryKind]], bytes_max: int) -> Iterator[Propose]:
    """Neighbours share one event, up to `bytes_max`; a membership change always gets its own."""
    if len(proposals) == 1:
        ((payload, kind),) = proposals
        yield Propose((payload,), kind)
        return
    together: list[bytes] = []
    size = 0
    for payload, kind in proposals:
        is_command = kind is EntryKind.COMMAND
        if together and (not is_command or size + len(payload) > bytes_max):
            yield Propose(tuple(together), EntryKind.COMMAND)
            together, size = [], 0
        if is_command:
            together.append(payload)
            size += len(payload)
        else:
            yield Propose((payload,), kind)
    if together:
        yield Propose(tuple(together), EntryKind.COMMAND)
