"""The commands in group 0's log, and the answers to them.

Every command names the call it belongs to. A call that is sent again, to the same leader or to another one, is applied
once: the store caches the answers to each client's latest calls.
"""

import uuid

import msgspec

from ebla.group0.members import Member
from ebla.model.transaction import Revision, Transaction


class CallId(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """One call of one client. `answered_through`: every serial up to it has been answered and may be dropped."""

    client: uuid.UUID
    incarnation: int
    serial: int
    answered_through: int


class AcquireLock(msgspec.Struct, frozen=True, tag="acquire_lock", array_like=True):
    """Makes `lock` the newest fencing token. It always succeeds, and thereby revokes the previous one."""

    lock: bytes


class ChangeMembers(msgspec.Struct, frozen=True, tag="change_members", array_like=True):
    """The members as they should be. Carried by a Raft membership entry, so store and quorum change at one index."""

    members: tuple[Member, ...]
    lock: bytes | None = None


CommandBody = Transaction | AcquireLock | ChangeMembers


class Group0Command(msgspec.Struct, frozen=True, array_like=True):
    call: CallId
    body: CommandBody


class Done(msgspec.Struct, frozen=True, tag="done", array_like=True):
    """Applied at this revision."""

    revision: Revision


class ConditionFailed(msgspec.Struct, frozen=True, tag="condition_failed", array_like=True):
    """Not applied: this key is not at the expected revision. `actual` is None if it does not exist."""

    key: str
    actual: Revision | None


class LockRevoked(msgspec.Struct, frozen=True, tag="lock_revoked", array_like=True):
    """Not applied: another lock was acquired since."""

    actual: bytes | None


class Rejected(msgspec.Struct, frozen=True, tag="rejected", array_like=True):
    """Not applied, and it never will be: the command is invalid."""

    reason: str


class Forgotten(msgspec.Struct, frozen=True, tag="forgotten", array_like=True):
    """A repeated call whose answer is no longer cached: it is unknown whether the first attempt was applied."""

    reason: str


CommandAnswer = Done | ConditionFailed | LockRevoked | Rejected | Forgotten

_encoder = msgspec.msgpack.Encoder()
_commands = msgspec.msgpack.Decoder(Group0Command)


def encode_command(command: Group0Command) -> bytes:
    return _encoder.encode(command)


def decode_command(data: bytes) -> Group0Command:
    return _commands.decode(data)
