"""What a node must remember of group 0 outside its log: how far it got in joining, its starts, its stores.

The file is beside the group 0 folder, not in it. A member whose folder is gone must not come back with an empty log
under its old id: it may have voted and acknowledged, and would take that back.
"""

import asyncio
import enum
import uuid

import msgspec

from ebla.group0.members import Member
from ebla.journal.checked_file import read_checked_file, replace_file
from ebla.model.errors import Corruption
from ebla.model.identity import Address, HistoryId, StartId, StoreId
from ebla.ports.disk import Disk

NO_HISTORY = HistoryId(uuid.UUID(int=0))


class JoinStage(enum.StrEnum):
    FRESH = "fresh"
    """Discovering other nodes. May create or join."""
    FOUNDING = "founding"
    """Decided to create the group, with the history saved here; its first state may not be durable yet."""
    JOINING = "joining"
    """Decided to join: it never creates a cluster. No member has accepted it, so nothing else is durable."""
    MEMBER = "member"
    """Holds state. Other members rely on what it acknowledged."""
    REMOVED = "removed"
    ACCEPTED = "accepted"
    """A learner of group 0 that holds no state yet. The history and the members are durable: after a restart it reaches
    group 0 without another response."""


class StoreMark(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    store: StoreId
    is_created: bool
    """False: it is being created, or the previous release's store is being given this id."""
    stamped: int = 0
    """The incarnation of the last start at which its log and its layers were there: they carry this number or a greater
    one (`storage/store_identity.py`)."""


class JoinState(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    stage: JoinStage = JoinStage.FRESH
    incarnation: int = 0
    known: tuple[Address, ...] = ()
    """Every address learned during discovery (INV-FORM-1 needs it to survive a restart)."""
    history: HistoryId = NO_HISTORY
    join_id: uuid.UUID | None = None
    """The attempt that was accepted."""
    log_id: int = 0
    """Of the log with the member's state. If the log has another id, or is missing, it was lost."""
    stores: tuple[StoreMark, ...] = ()
    """Of the shards, by number; also of those that the node no longer runs."""
    confirmed: int = 0
    """The incarnation of the last start that group 0 confirmed. Not that of the last start: an older copy that was
    refused once has counted on, and would pass at its next start."""
    offered: tuple[StartId, ...] = ()
    """Starts since then that were offered to group 0, and ended before they knew whether they were confirmed."""
    members: tuple[Member, ...] = ()
    """Of group 0 when this node was accepted, until it has its own state."""


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(JoinState)


class JoinStateFile:
    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self._path = path
        self._saving = asyncio.Lock()
        self.mark = JoinState()

    async def load(self) -> JoinState:
        try:
            data = await read_checked_file(self._disk, self._path)
        except FileNotFoundError:
            return self.mark
        try:
            self.mark = _decoder.decode(data)
        except msgspec.DecodeError as error:
            raise Corruption(
                f"{self._path} does not decode ({error})",
                advice="remove the node from the cluster and start it with a new, empty folder",
            ) from error
        return self.mark

    async def save(self, **fields: object) -> None:
        """With these fields replaced; durable on return. One at a time: a later save includes what an earlier one
        changed."""
        async with self._saving:
            mark = msgspec.structs.replace(self.mark, **fields)
            if mark != self.mark:
                await replace_file(self._disk, self._path, _encoder.encode(mark))
                self.mark = mark
