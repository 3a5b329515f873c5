"""The replicated state: keys with revisions, the lock, the members, and the answer cache.

It changes by `apply(index, command)` only, which depends on nothing but the state and the entry, so every node that
applies the same log holds the same store. The store is changed in place: one owner applies entries one after another,
and what it hands out (values, change sets, answers) is immutable.
"""

from typing import assert_never

import msgspec

from ebla.group0.answer_cache import AnswerCache
from ebla.group0.change_feed import ChangeSet, KeyChange, RecentChanges
from ebla.group0.commands import (
    AcquireLock,
    ChangeMembers,
    CommandAnswer,
    ConditionFailed,
    Done,
    Group0Command,
    LockRevoked,
    Rejected,
)
from ebla.group0.members import Member, member_key, why_illegal
from ebla.group0.sorted_keys import SortedKeys
from ebla.model.identity import HistoryId, HostId
from ebla.model.stored_value import StoredValue, decode_stored, encode_stored
from ebla.model.transaction import (
    MEMBERS_PREFIX,
    Change,
    Condition,
    DeleteKey,
    KeyMissing,
    KeyUnchanged,
    MembersUnchanged,
    PutKey,
    Revision,
    Transaction,
)
from ebla.topology.keys import STATE
from ebla.topology.snapshot import TopologyState
from ebla.version import Feature


class HistoryStart(msgspec.Struct, frozen=True, array_like=True):
    """A line of history. Quorum failover starts a new one: it begins after `parent_end` of the previous one, and
    later entries of the old line are not part of it. The first history has 0 here."""

    history: HistoryId
    parent_end: int


class KeyEntry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A value and the index of its last change. Its history is the one that was current at that index.

    There may be a million of them, and a garbage collection over all of them would block the loop. They cannot be part
    of a reference cycle."""

    value: bytes
    revision: Revision


class ApplyResult(msgspec.Struct, frozen=True, gc=False):
    """The result of applying one entry. `members_changed`: whether the Raft membership follows. A rejected membership
    entry must reach the core as an empty change, on every node alike."""

    answer: CommandAnswer
    step: ChangeSet
    members_changed: bool = False


class PresentMembers(msgspec.Struct, frozen=True):
    """The members that are not removed, and the revision of the last membership change, from one state of the store."""

    members: tuple[Member, ...]
    revision: Revision


class Group0Store:
    def __init__(self, chain: tuple[HistoryStart, ...]) -> None:
        assert chain, "a store belongs to a history"
        self.chain = chain
        self.index = 0
        self.lock: bytes | None = None
        self.entries: dict[str, KeyEntry] = {}
        self.members: dict[str, Member] = {}
        self.answers = AnswerCache()
        self.recent = RecentChanges(floor=0)
        self._ordered = SortedKeys()

    @property
    def revision(self) -> Revision:
        return Revision(self.chain[-1].history, self.index)

    @property
    def members_revision(self) -> Revision:
        """Of the last membership change. A removed member keeps its entry, so the newest entry is the last change."""
        revisions = [self.entries[key].revision for key in self.members]
        return max(revisions, key=lambda revision: revision.index, default=Revision(self.chain[0].history, 0))

    def present_members(self) -> PresentMembers:
        present = tuple(member for _, member in sorted(self.members.items()) if member.present)
        return PresentMembers(present, self.members_revision)

    def get(self, key: str) -> KeyEntry | None:
        return self.entries.get(key)

    def keys(self, prefix: str) -> list[str]:
        """The keys under a prefix, in order."""
        return self._ordered.below(prefix)

    def apply(self, index: int, command: Group0Command) -> ApplyResult:
        assert index > self.index, f"entry {index} was applied already: the store is at {self.index}"
        self.index = index
        if (known := self.answers.lookup(command.call)) is not None:
            return ApplyResult(known, ChangeSet(index, ()))
        applied = self._apply_new(command)
        self.answers.remember(command.call, applied.answer, index)
        self.recent.append(applied.step)
        return applied

    def skip(self, index: int) -> None:
        """An entry of Raft itself (the empty one of a new leader) only changes the index."""
        assert index > self.index
        self.index = index

    def follow(self, before: "Group0Store") -> ChangeSet:
        """Replaces `before`, an earlier state of the same store (an installed snapshot does this), and returns every
        key that differs, so that a feed crosses the snapshot without a gap."""
        assert self.index >= before.index, "a snapshot never goes back in the log"
        step = ChangeSet(self.index, tuple(self._difference(before)))
        if before.index == 0:
            # A node that just started does not know which keys were deleted before this state, so a reader that
            # resumes from an earlier index must start over.
            return step
        self.recent = before.recent
        if self.index > before.index:
            self.recent.append(step)
        return step

    def content(self, prefix: str) -> tuple[KeyChange, ...]:
        """All keys under the prefix, as if just written: for a reader that starts from nothing."""
        return tuple(KeyChange(key, self.entries[key].value) for key in self.keys(prefix))

    def order(self) -> SortedKeys:
        """All keys. Sorted now if the entries were filled in directly."""
        if len(self._ordered) != len(self.entries):
            self._ordered = SortedKeys(self.entries)
        return self._ordered

    def rebuild_indexes(self, order: SortedKeys | None = None) -> None:
        """Called after the entries were filled in directly (decoding a snapshot). Sorting a million keys would block
        the loop for too long, so a caller that filled them in order passes the order."""
        self._ordered = SortedKeys(self.entries) if order is None else order
        assert len(self._ordered) == len(self.entries)
        self.members = {key: decode_stored(Member, self.entries[key].value).value for key in self.keys(MEMBERS_PREFIX)}

    def _apply_new(self, command: Group0Command) -> ApplyResult:
        match command.body:
            case Transaction() as transaction:
                return self._apply_transaction(transaction)
            case AcquireLock(lock=lock):
                self.lock = lock
                return ApplyResult(Done(self.revision), ChangeSet(self.index, ()))
            case ChangeMembers() as change:
                return self._apply_members(change)
            case _ as never:
                assert_never(never)

    def _apply_transaction(self, transaction: Transaction) -> ApplyResult:
        refusal: CommandAnswer | None = None
        if transaction.lock is not None:
            refusal = self._revoked(transaction.lock)
        if refusal is None and transaction.conditions:
            refusal = self._first_failed(transaction.conditions)
        refusal = refusal or _reserved(transaction.changes)
        if refusal is not None:
            return ApplyResult(refusal, ChangeSet(self.index, ()))
        changed = [self._change(change) for change in transaction.changes]
        changes = tuple([change for change in changed if change is not None])
        return ApplyResult(Done(self.revision), ChangeSet(self.index, changes))

    def _apply_members(self, change: ChangeMembers) -> ApplyResult:
        refusal: CommandAnswer | None = self._revoked(change.lock)
        if change.lock is None and self._requires_lock():
            refusal = Rejected("a membership entry must name a lock")
        if refusal is None and (reason := why_illegal(self.members, change.members)):
            refusal = Rejected(reason)
        if refusal is not None:
            return ApplyResult(refusal, ChangeSet(self.index, ()))
        changes = []
        for member in change.members:
            key = member_key(member.host)
            known = decode_stored(Member, self.entries[key].value) if key in self.entries else StoredValue(member)
            changes.append(self._put(key, encode_stored(known.with_value(member))))
            self.members[key] = member
        return ApplyResult(Done(self.revision), ChangeSet(self.index, tuple(changes)), members_changed=True)

    def _requires_lock(self) -> bool:
        """From the index on that enables the feature, and not before it: a node that replays an older log, or runs an
        older release, must compute the same members from the entries before."""
        entry = self.entries.get(STATE)
        enabled = () if entry is None else decode_stored(TopologyState, entry.value).value.enabled_features
        return Feature.MEMBERSHIP_LOCK in enabled

    def _revoked(self, lock: bytes | None) -> LockRevoked | None:
        return LockRevoked(self.lock) if lock is not None and lock != self.lock else None

    def _first_failed(self, conditions: tuple[Condition, ...]) -> ConditionFailed | None:
        for condition in conditions:
            entry = self.entries.get(condition.key)
            actual = entry.revision if entry is not None else None
            match condition:
                case KeyUnchanged(revision=expected):
                    holds = actual == expected
                case KeyMissing():
                    holds = actual is None
                case MembersUnchanged(revision=since):
                    actual = self.members_revision
                    holds = is_on_chain(self.chain, since) and actual.index <= since.index
                case _ as never:
                    assert_never(never)
            if not holds:
                return ConditionFailed(condition.key, actual)
        return None

    def _change(self, change: Change) -> KeyChange | None:
        match change:
            case PutKey(key=key, value=value):
                return self._put(key, value)
            case DeleteKey(key=key):
                return self._delete(key)
            case _ as never:
                assert_never(never)

    def _put(self, key: str, value: bytes) -> KeyChange:
        if key not in self.entries:
            self._ordered.add(key)
        self.entries[key] = KeyEntry(value, self.revision)
        return KeyChange(key, value)

    def _delete(self, key: str) -> KeyChange | None:
        if self.entries.pop(key, None) is None:
            return None
        self._ordered.remove(key)
        return KeyChange(key, None)

    def _difference(self, before: "Group0Store") -> list[KeyChange]:
        """Compared in memory order and sorted afterwards: most of the time is spent waiting for memory."""
        entries, former = self.entries, before.entries
        gone = [KeyChange(key, None) for key in before.keys("") if key not in entries]
        if self.chain == before.chain:
            # Within one history, equal indexes mean equal values and are much faster to compare.
            keys = [
                key
                for key, new in entries.items()
                if (old := former.get(key)) is None or old.revision.index != new.revision.index
            ]
        else:
            keys = [key for key, new in entries.items() if former.get(key) != new]
        changed = [KeyChange(key, entries[key].value) for key in sorted(keys)]
        return gone + changed


def _reserved(changes: tuple[Change, ...]) -> Rejected | None:
    """Members change by membership entries only, so that the store and the quorum cannot disagree."""
    seen: dict[str, None] = {}
    for change in changes:
        if change.key.startswith(MEMBERS_PREFIX):
            return Rejected(f"{change.key} changes by membership changes only")
        if change.key in seen:
            return Rejected(f"{change.key} occurs twice in one transaction")
        seen[change.key] = None
    return None


def history_at(chain: tuple[HistoryStart, ...], index: int) -> HistoryId:
    """The history that was current at an index."""
    for start in reversed(chain):
        if start.parent_end < index:
            return start.history
    return chain[0].history


def is_on_chain(chain: tuple[HistoryStart, ...], revision: Revision) -> bool:
    """Whether the revision is part of this line of histories. Not if its history is unknown, nor if a later history
    began before it."""
    return history_at(chain, revision.index) == revision.history


def sender_refusal(store: Group0Store, sender: HostId, members_revision: Revision) -> str:
    """Why this node must not merge a message of `sender`; empty: it may. `members_revision`: of the last membership
    change that the sender has applied.

    A sender that knows no more than this node must be a member here: a removed host does not know of its removal, and
    what it sends would bring back what the members have erased. A sender that knows more may be a new member."""
    if not is_on_chain(store.chain, members_revision):
        return f"host {sender} follows history {members_revision.history}, which this node does not know"
    if members_revision.index > store.members_revision.index:
        return ""
    known = store.members.get(member_key(sender))
    return "" if known is not None and known.present else f"host {sender} is not a member of this cluster"
