"""A conditional change of many group 0 keys at once. The topology model produces it, group 0 applies it."""

import msgspec

from ebla.model.identity import HistoryId

MEMBERS_PREFIX = "members/"
"""Group 0's keys of its members."""


class Revision(msgspec.Struct, frozen=True, order=True, array_like=True, gc=False):
    """When a key last changed: an index in one history. Comparable only within that history."""

    history: HistoryId
    index: int


class KeyUnchanged(msgspec.Struct, frozen=True, tag="unchanged", array_like=True):
    """The key exists and its last change is exactly this revision."""

    key: str
    revision: Revision


class KeyMissing(msgspec.Struct, frozen=True, tag="missing", array_like=True):
    """The key does not exist."""

    key: str


class MembersUnchanged(msgspec.Struct, frozen=True, tag="members_unchanged", array_like=True):
    """No member entry was written after this revision. Earlier releases cannot decode it: a transaction may have it
    only while every member advertises the feature that needs it."""

    revision: Revision

    @property
    def key(self) -> str:
        """Names it where conditions on keys are named."""
        return MEMBERS_PREFIX


Condition = KeyUnchanged | KeyMissing | MembersUnchanged


class PutKey(msgspec.Struct, frozen=True, tag="put", array_like=True):
    key: str
    value: bytes


class DeleteKey(msgspec.Struct, frozen=True, tag="delete", array_like=True):
    """Removes the key; a missing key is no error."""

    key: str


Change = PutKey | DeleteKey


class Transaction(msgspec.Struct, frozen=True, tag="transaction", array_like=True):
    """All of the changes if every condition holds, else none of them.

    A key is in at most one change. A transaction that names a lock applies only while that lock is the newest.
    """

    conditions: tuple[Condition, ...]
    changes: tuple[Change, ...]
    lock: bytes | None = None
