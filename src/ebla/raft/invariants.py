"""The invariants of a Raft group, as checks over its cores and their history.

Called after every step in tests and simulation. The cores know nothing of it.

INV-RAFT-1  Election safety: one leader per term.
INV-RAFT-2  Log matching: equal index and term mean an equal entry and an equal prefix.
INV-RAFT-3  Leader completeness: a leader holds every entry committed in earlier terms.
INV-RAFT-4  State machine safety: at an index, all peers commit and apply the same entry.
INV-RAFT-5  One membership change at a time: no log holds two uncommitted ones.
INV-RAFT-6  Terms and votes never go back, not even in a crash: what a peer has sent stays true.
INV-RAFT-7  What a leader commits is durable at a quorum of its membership.
"""

import enum
from collections.abc import Iterable, Mapping
from typing import Protocol

from ebla.raft.core import RaftCore
from ebla.raft.messages import AppendResponse, Entry, EntryKind, Message, PeerId, VoteResponse
from ebla.raft.quorum import VoteResult, joint_vote
from ebla.raft.roles import Leader


class RaftInvariant(enum.Enum):
    ELECTION_SAFETY = "INV-RAFT-1"
    LOG_MATCHING = "INV-RAFT-2"
    LEADER_COMPLETENESS = "INV-RAFT-3"
    STATE_MACHINE_SAFETY = "INV-RAFT-4"
    ONE_CHANGE = "INV-RAFT-5"
    NO_REGRESSION = "INV-RAFT-6"
    DURABLE_QUORUM = "INV-RAFT-7"


class RaftInvariantBroken(AssertionError):
    def __init__(self, invariant: RaftInvariant, story: str) -> None:
        super().__init__(f"{invariant.value}: {story}")
        self.invariant = invariant


class DurableLog(Protocol):
    def holds(self, index: int, term: int) -> bool:
        """Whether a crash now would leave this entry, or a snapshot that covers it."""
        ...


def _require(condition: bool, invariant: RaftInvariant, story: str) -> None:
    if not condition:
        raise RaftInvariantBroken(invariant, story)


class RaftChecker:
    """Records everything observed of one group. One per run; call `observe` after each step of a core."""

    def __init__(self) -> None:
        self.leaders: dict[int, PeerId] = {}
        self.committed: dict[int, int] = {}
        """Index to term."""
        self.committed_to = 0
        self._entries: dict[tuple[int, int], tuple[Entry, int]] = {}
        """An entry and the term before it, by index and term."""
        self._checked: dict[PeerId, dict[int, int]] = {}
        self._known_commit: dict[PeerId, int] = {}
        self._known_term: dict[PeerId, int] = {}
        self._votes: dict[tuple[PeerId, int], PeerId] = {}
        self._sent_term: dict[PeerId, int] = {}

    # The state of the cores.

    def observe(self, core: RaftCore, durable: Mapping[PeerId, DurableLog]) -> None:
        self._check_term(core)
        self._check_log(core)
        self._check_leader(core)
        self._check_commit(core, durable)

    def restarted(self, core: RaftCore) -> None:
        """INV-RAFT-6 across a crash: what was only in memory may be gone, what another peer was sent may not."""
        peer = core.peer
        sent = self._sent_term.get(peer, 0)
        _require(
            core.term >= sent, RaftInvariant.NO_REGRESSION, f"peer {peer} restarts in term {core.term} after {sent}"
        )
        self._checked.pop(peer, None)
        self._known_commit.pop(peer, None)
        self._known_term.pop(peer, None)

    def _check_term(self, core: RaftCore) -> None:
        before = self._known_term.get(core.peer, 0)
        _require(
            core.term >= before,
            RaftInvariant.NO_REGRESSION,
            f"peer {core.peer} went back from term {before} to {core.term}",
        )
        self._known_term[core.peer] = core.term

    def _check_log(self, core: RaftCore) -> None:
        """By induction: an entry is right if it and the term before it equal those first seen on any peer."""
        log = core.state.log
        checked = self._checked.setdefault(core.peer, {})
        changes = 0
        for index in range(log.last_index, max(log.base_index, self.committed_to), -1):
            changes += log.entry_at(index).kind is not EntryKind.COMMAND
        if core.state.options.validate_changes:
            _require(changes <= 1, RaftInvariant.ONE_CHANGE, f"peer {core.peer} holds {changes} uncommitted changes")
        for index in range(log.last_index, log.base_index, -1):
            term = log.term_at(index)
            assert term is not None
            if checked.get(index) == term:
                break
            self._check_entry(core.peer, log.entry_at(index), log.term_at(index - 1) or 0)
            checked[index] = term

    def _check_entry(self, peer: PeerId, entry: Entry, term_before: int) -> None:
        first_seen = self._entries.setdefault((entry.index, entry.term), (entry, term_before))
        _require(
            first_seen == (entry, term_before),
            RaftInvariant.LOG_MATCHING,
            f"peer {peer} holds {entry} after term {term_before}, elsewhere it is {first_seen}",
        )

    def _check_leader(self, core: RaftCore) -> None:
        if not isinstance(core.role, Leader):
            return
        known = self.leaders.get(core.term)
        if known is None:
            self._check_completeness(core)
            self.leaders[core.term] = core.peer
        else:
            _require(
                known == core.peer,
                RaftInvariant.ELECTION_SAFETY,
                f"peers {known} and {core.peer} lead term {core.term}",
            )

    def _check_completeness(self, core: RaftCore) -> None:
        log = core.state.log
        for index in range(log.first_index, self.committed_to + 1):
            _require(
                log.term_at(index) == self.committed[index],
                RaftInvariant.LEADER_COMPLETENESS,
                f"peer {core.peer} leads term {core.term} without entry {index} of term {self.committed[index]}",
            )

    def _check_commit(self, core: RaftCore, durable: Mapping[PeerId, DurableLog]) -> None:
        log, peer = core.state.log, core.peer
        before = self._known_commit.get(peer, log.base_index)
        _require(
            log.committed >= before, RaftInvariant.NO_REGRESSION, f"peer {peer} took back its commit index {before}"
        )
        _require(log.applied <= log.committed, RaftInvariant.STATE_MACHINE_SAFETY, f"peer {peer} applied too much")
        for index in range(max(before, log.base_index) + 1, log.committed + 1):
            term = log.term_at(index)
            assert term is not None
            _require(
                self.committed.setdefault(index, term) == term,
                RaftInvariant.STATE_MACHINE_SAFETY,
                f"peer {peer} commits entry {index} of term {term}, others of term {self.committed[index]}",
            )
        if isinstance(core.role, Leader) and log.committed > self.committed_to:
            self._check_quorum(core, durable)
        self.committed_to = max(self.committed_to, log.committed)
        self._known_commit[peer] = log.committed

    def _check_quorum(self, core: RaftCore, durable: Mapping[PeerId, DurableLog]) -> None:
        """Independent of what the leader believes: it checks the disks."""
        index, term = core.commit_index, core.state.log.term_at(core.commit_index)
        if term is None:
            return
        holders = {peer: disk.holds(index, term) for peer, disk in durable.items()}
        _require(
            joint_vote(core.membership, holders) is VoteResult.WON,
            RaftInvariant.DURABLE_QUORUM,
            f"peer {core.peer} commits {index} of term {term} under {core.membership}, durable at {holders}",
        )

    # Messages that leave a peer.

    def left(self, message: Message) -> None:
        """A message has left its sender: any peer may act on it."""
        if isinstance(message, VoteResponse) and message.granted:
            voter, term = message.sender, message.term
            first = self._votes.setdefault((voter, term), message.to)
            _require(
                first == message.to,
                RaftInvariant.NO_REGRESSION,
                f"peer {voter} votes for {first} and {message.to} in {term}",
            )
        # These two answers reveal the sender's term, so they must not leave before that term is durable.
        if isinstance(message, VoteResponse | AppendResponse):
            self._sent_term[message.sender] = max(self._sent_term.get(message.sender, 0), message.term)

    def applied(self, peer: PeerId, entries: Iterable[Entry]) -> None:
        for entry in entries:
            _require(
                self.committed.get(entry.index) == entry.term,
                RaftInvariant.STATE_MACHINE_SAFETY,
                f"peer {peer} applies {entry}, committed is term {self.committed.get(entry.index)}",
            )
