"""A whole group without IO under a seeded adversary: loss, repetition, reordering, cuts, crashes that lose what was not
yet durable, membership changes, transfers, snapshots. Invariants are checked after every step."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from ebla.raft.core import RaftCore
from ebla.raft.effects import ApplyEntries, LogWrite
from ebla.raft.events import (
    ApplyMembership,
    Campaign,
    Compact,
    ForgetLeader,
    PeerReachable,
    PeerUnreachable,
    Propose,
    RaftEvent,
    ReadIndex,
    SnapshotSent,
    SnapshotTaken,
    Tick,
    TransferLeadership,
    WriteCompleted,
)
from ebla.raft.invariants import RaftChecker
from ebla.raft.membership import (
    MemberChange,
    MemberChangeKind,
    MembershipChange,
    MembershipRefused,
    Transition,
    apply_change,
    change_of,
    encode_change,
)
from ebla.raft.messages import Entry, EntryKind, HardState, Membership, Message, PeerId, SnapshotMeta
from ebla.raft.options import RaftOptions
from ebla.raft.roles import Leader
from ebla.raft.state import Contradiction, RecoveredState, StepRefusal
from ebla.sim.rng import SimRng

T = TypeVar("T")


@dataclass(kw_only=True)
class Durable:
    """The state that survives a crash."""

    hard_state: HardState
    snapshot: SnapshotMeta
    base: Entry
    entries: list[Entry] = field(default_factory=list)

    def holds(self, index: int, term: int) -> bool:
        if index <= self.snapshot.index:
            return True
        position = index - self.base.index - 1
        return 0 <= position < len(self.entries) and self.entries[position].term == term

    def write(self, write: LogWrite) -> None:
        if write.snapshot is not None and write.snapshot.index > self.snapshot.index:
            self.snapshot = write.snapshot
            self.base = Entry(index=write.snapshot.index, term=write.snapshot.term)
            self.entries = []
        if write.hard_state is not None:
            self.hard_state = write.hard_state
        if write.entries:
            keep = write.entries[0].index - self.base.index - 1
            if keep >= 0:
                self.entries[keep:] = write.entries

    def past(self) -> RecoveredState:
        kept = (self.base, *self.entries) if self.base.index else tuple(self.entries)
        return RecoveredState(self.hard_state, self.snapshot, kept)


class Peer:
    def __init__(self, options: RaftOptions, snapshot: SnapshotMeta, seed: int) -> None:
        self.options = options
        self.durable = Durable(
            hard_state=HardState(), snapshot=snapshot, base=Entry(index=snapshot.index, term=snapshot.term)
        )
        self.rng = SimRng(str(seed))
        self.now_ms = 0
        self.writes: list[LogWrite] = []
        self.applies: list[ApplyEntries] = []
        self.applied = snapshot
        self.core = RaftCore(options, self.durable.past(), self.rng, 0)

    def restart(self) -> None:
        self.writes.clear()
        self.applies.clear()
        self.applied = self.durable.snapshot
        self.core = RaftCore(self.options, self.durable.past(), self.rng, self.now_ms)


@dataclass(frozen=True, kw_only=True)
class Harshness:
    """How often things go wrong, per thousand actions."""

    crash: int = 6
    cut: int = 4
    heal: int = 6
    lose: int = 60
    repeat: int = 20
    change: int = 6
    transfer: int = 4
    snapshot: int = 8


class Adversary:
    def __init__(
        self,
        seed: int,
        peers: int,
        harshness: Harshness | None = None,
        options: Callable[[PeerId], RaftOptions] | None = None,
    ) -> None:
        self.random = random.Random(seed)
        self.harshness = harshness or Harshness()
        self.history = RaftChecker()
        self.flying: list[Message] = []
        self.cuts: set[tuple[PeerId, PeerId]] = set()
        self.peers: dict[PeerId, Peer] = {}
        self.reads: dict[bytes, int] = {}
        self.reads_answered = 0
        self.changes_applied = 0
        self._serial = 0
        first = SnapshotMeta(1, 1, Membership(voters=tuple(PeerId(n) for n in range(1, min(peers, 5) + 1))))
        for number in range(1, peers + 1):
            peer = PeerId(number)
            chosen = options(peer) if options is not None else self._options(peer)
            start = first if first.membership.is_member(peer) else SnapshotMeta()
            self.peers[peer] = Peer(chosen, start, seed * 1000 + number)

    def _options(self, peer: PeerId) -> RaftOptions:
        """The same for all peers of a run, different between runs."""
        return RaftOptions(
            peer=peer,
            election_ticks=5,
            check_quorum=self.random.random() < 0.6,
            pre_vote=self.random.random() < 0.6,
            message_bytes_max=200,
            inflight_messages_max=4,
            apply_bytes_max=300,
            uncommitted_bytes_max=2000,
        )

    # Running.

    def run(self, actions: int) -> None:
        for _ in range(actions):
            self.act()

    def act(self) -> None:
        h, dice = self.harshness, self.random.randrange(1000)
        rare: list[tuple[int, Callable[[], None]]] = [
            (h.crash, self._crash),
            (h.cut, self._cut),
            (h.heal, self.cuts.clear),
            (h.change, self._propose_change),
            (h.transfer, self._transfer),
            (h.snapshot, self._snapshot),
            (2, self._forget),
            (2, self._unreachable),
            (4, self._campaign),
            (15, self._read),
            (40, self._propose),
            (50, self._tick),
        ]
        for weight, action in rare:
            if dice < weight:
                action()
                return
            dice -= weight
        self.random.choice((self._deliver, self._deliver, self._take, self._take, self._write, self._apply))()

    def _any(self) -> Peer:
        return self.random.choice(list(self.peers.values()))

    def step(self, peer: Peer, event: RaftEvent) -> StepRefusal | None:
        outcome = peer.core.step(event, peer.now_ms)
        assert not isinstance(outcome, Contradiction), str(outcome)
        self._check(peer)
        return outcome

    def _check(self, peer: Peer) -> None:
        self.history.observe(peer.core, {number: each.durable for number, each in self.peers.items()})

    def _send(self, message: Message) -> None:
        self.history.left(message)
        self.flying.append(message)

    # The driver's part.

    def _take(self, peer: Peer | None = None) -> None:
        peer = peer or self._any()
        if not peer.core.has_effects:
            return
        effects = peer.core.take()
        for message in effects.messages:
            self._send(message)
        if effects.write is not None:
            peer.writes.append(effects.write)
        if effects.apply is not None:
            peer.applies.append(effects.apply)
        for read in effects.reads:
            self.reads_answered += 1
            asked = self.reads[read.context]
            assert read.index >= asked, f"a read asked at {asked} was answered with {read.index}"

    def _write(self, peer: Peer | None = None) -> None:
        peer = peer or self._any()
        if not peer.writes:
            return
        write = peer.writes.pop(0)
        self._make_durable(peer, write)
        for answer in write.answers:
            if answer.to == peer.core.peer:
                self.step(peer, answer)
            else:
                assert not isinstance(answer, WriteCompleted)
                self._send(answer)

    def _make_durable(self, peer: Peer, write: LogWrite) -> None:
        peer.durable.write(write)
        if write.snapshot is not None and write.snapshot.index > peer.applied.index:
            peer.applied = write.snapshot

    def _apply(self, peer: Peer | None = None) -> None:
        peer = peer or self._any()
        if not peer.applies:
            return
        apply = peer.applies.pop(0)
        if apply.entries[-1].index > peer.applied.index:
            self.history.applied(peer.core.peer, apply.entries)
            for entry in apply.entries:
                assert peer.durable.holds(entry.index, entry.term), f"{entry} is applied before it is durable"
            for entry in apply.entries:
                if entry.kind is not EntryKind.COMMAND:
                    self.changes_applied += 1
                    self.step(peer, ApplyMembership(entry.index, change_of(entry)))
            last = apply.entries[-1]
            peer.applied = SnapshotMeta(last.index, last.term, peer.core.membership)
        self.step(peer, apply.answer)

    def _tick(self, peer: Peer | None = None) -> None:
        peer = peer or self._any()
        peer.now_ms += peer.options.tick_ms
        self.step(peer, Tick())

    # The network's part.

    def _deliver(self) -> None:
        """Delivers more at once the more there are; otherwise only old messages would arrive."""
        for _ in range(1 + len(self.flying) // 8):
            self._deliver_one()

    def _deliver_one(self) -> None:
        if not self.flying:
            return
        # Mostly the oldest: an adversary that only reorders never lets anything finish.
        at = 0 if self.random.random() < 0.7 else self.random.randrange(len(self.flying))
        message = self.flying[at]
        dice = self.random.randrange(1000)
        if dice >= self.harshness.repeat:
            del self.flying[at]
        if dice < self.harshness.repeat + self.harshness.lose and dice >= self.harshness.repeat:
            return
        if (message.sender, message.to) not in self.cuts:
            self.step(self.peers[message.to], message)
        elif dice < self.harshness.repeat:
            del self.flying[at]

    def _cut(self) -> None:
        """One direction, or a peer from all others."""
        numbers = list(self.peers)
        alone, other = self.random.sample(numbers, 2)
        if self.random.random() < 0.5:
            self.cuts.add((alone, other))
            return
        for number in numbers:
            self.cuts.add((alone, number))
            self.cuts.add((number, alone))

    # Faults and operator actions.

    def _crash(self, peer: Peer | None = None) -> None:
        """Some of the pending writes have reached the disk, in order; the core was not notified."""
        peer = peer or self._any()
        for write in peer.writes[: self.random.randrange(len(peer.writes) + 1)]:
            self._make_durable(peer, write)
        peer.restart()
        self.history.restarted(peer.core)
        self._check(peer)

    def _propose(self) -> None:
        self._serial += 1
        payloads = tuple(f"{self._serial}.{n}".encode() for n in range(self.random.randrange(1, 4)))
        self.step(self._any(), Propose(payloads))

    def _leader(self) -> Peer | None:
        leaders = [peer for peer in self.peers.values() if isinstance(peer.core.role, Leader)]
        return max(leaders, key=lambda peer: peer.core.term, default=None)

    def _propose_change(self) -> None:
        peer = self._leader()
        if peer is None:
            return
        membership = peer.core.membership
        numbers = list(self.peers)
        kinds = (
            MemberChangeKind.ADD_VOTER,
            MemberChangeKind.ADD_VOTER,
            MemberChangeKind.ADD_LEARNER,
            MemberChangeKind.REMOVE,
        )
        changes = tuple(
            MemberChange(self.random.choice(kinds), number)
            for number in self.random.sample(numbers, self.random.choice((1, 1, 2)))
        )
        change = MembershipChange(changes, self.random.choice(list(Transition)))
        if membership.is_joint:
            change = MembershipChange()
        try:
            after = apply_change(membership, change)
        except MembershipRefused:
            return
        if len(after.voters) >= 2:
            self.step(peer, Propose((encode_change(change),), EntryKind.MEMBERS))

    def _transfer(self) -> None:
        self.step(self._any(), TransferLeadership(self._any().core.peer))

    def _campaign(self) -> None:
        self.step(self._any(), Campaign())

    def _forget(self) -> None:
        self.step(self._any(), ForgetLeader())

    def _unreachable(self) -> None:
        peer = self._any()
        other = self._any().core.peer
        drawn = self.random.random()
        if drawn < 0.5:
            self.step(peer, PeerUnreachable(other) if drawn < 0.25 else PeerReachable(other))
        else:
            self.step(peer, SnapshotSent(other, delivered=self.random.random() < 0.5))

    def _snapshot(self) -> None:
        """Durable before the core learns of it; some entries are kept before it for slow peers."""
        peer = self._any()
        log, applied = peer.core.state.log, peer.applied
        if log.incoming_snapshot is not None or applied.index <= peer.durable.snapshot.index:
            return
        if not peer.durable.holds(applied.index, applied.term):
            return
        durable = peer.durable
        durable.snapshot = applied
        self.step(peer, SnapshotTaken(applied))
        index = self.random.randrange(durable.base.index, applied.index + 1)
        if index > durable.base.index:
            position = index - durable.base.index
            durable.base = durable.entries[position - 1]
            del durable.entries[:position]
            self.step(peer, Compact(index))

    def _read(self) -> None:
        self._serial += 1
        context = f"r{self._serial}".encode()
        self.reads[context] = self.history.committed_to
        self.step(self._any(), ReadIndex(context))

    # The end.

    def settle(self, rounds: int = 400) -> None:
        """All faults end: soon there must be one leader, and all its members must catch up."""
        self.cuts.clear()
        for peer in self.peers.values():
            self._crash(peer)
        for _ in range(rounds):
            self._round()
            if self._is_settled():
                return
        raise AssertionError(f"not settled after {rounds} rounds: {self._picture()}")

    def _round(self) -> None:
        for peer in self.peers.values():
            self._tick(peer)
        leader = self._leader()
        if leader is not None and leader.core.membership.is_joint and not leader.core.membership.auto_leave:
            self.step(leader, Propose((encode_change(MembershipChange()),), EntryKind.MEMBERS))
        for _ in range(12):
            for peer in self.peers.values():
                self._take(peer)
                while peer.writes:
                    self._write(peer)
                while peer.applies:
                    self._apply(peer)
            flying, self.flying = self.flying, []
            for message in flying:
                self.step(self.peers[message.to], message)

    def _is_settled(self) -> bool:
        leader = self._leader()
        if leader is None or leader.core.membership.is_joint:
            return False
        members = [self.peers[number] for number in leader.core.membership.all_members()]
        return all(
            peer.core.commit_index == leader.core.last_index
            and peer.applied.index == leader.core.last_index
            and peer.core.leader == leader.core.peer
            and peer.core.membership == leader.core.membership
            for peer in members
        )

    def _picture(self) -> str:
        return "; ".join(
            f"{number}: {type(peer.core.role).__name__} term {peer.core.term} last {peer.core.last_index} "
            f"commit {peer.core.commit_index} applied {peer.applied.index} {peer.core.membership}"
            for number, peer in self.peers.items()
        )
