"""The staging area of a node: targets for transfers, by session; what is left of them on disk, and recovery at a start.

The layout on disk is defined in `storage/codec/staging_format.py`. The states of a transfer are in `staging_state.py`,
writing into it in `open_puts.py`, the seal in `seal.py`.
"""

import asyncio
import uuid
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial

from ebla.bulk.staging_state import StagingState, TransferPhase, sorted_attempts
from ebla.bulk.transfer_context import TransferContext
from ebla.journal.recovery import make_durable_folder
from ebla.model.errors import Corruption, Overloaded, Refused, Stale
from ebla.model.identity import AttemptId, SessionId, TransferId
from ebla.storage.codec.staging_format import (
    SealedFile,
    TargetFile,
    read_sealed,
    read_target,
    transfer_folder,
    write_target,
)
from ebla.wire.transfer_messages import StagingStatus

SEALED_PREFIX = "sealed-"
RUN_SUFFIX = ".run"
"""Of a run of rows that a seal has taken over; before it comes the id of its attempt."""
REMOVING_PREFIX = "going-"
"""Of folders that are being removed. Without their old name, no one finds a part of their files."""


@dataclass(slots=True, eq=False, kw_only=True)
class StagedTransfer:
    """The target of one transfer."""

    session: SessionId
    transfer: TransferId
    folder: str
    target: TargetFile
    state: StagingState = field(default_factory=StagingState)
    sealed: SealedFile | None = None
    sealed_is_durable: bool = False
    copied_files: int = 0
    received: dict[AttemptId, int] = field(default_factory=dict)
    """Bytes, of attempts over Flight."""
    changing: asyncio.Lock = field(default_factory=asyncio.Lock)

    def attempt_folder(self, attempt: AttemptId) -> str:
        return f"{self.folder}/{attempt}"

    @property
    def status(self) -> StagingStatus:
        received = max(self.received.values(), default=0)
        if self.sealed is not None:
            received = max(received, self.sealed.size_bytes)
        return StagingStatus(
            session=self.session,
            transfer=self.transfer,
            phase=str(self.state.phase),
            received_bytes=received,
            attempts=len(self.state.attempts),
        )


@dataclass(slots=True, eq=False)
class _OpenLock:
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    callers: int = 0


class Staging:
    def __init__(self, context: TransferContext) -> None:
        self._context = context
        self._disk = context.disk
        self._root = context.staging_folder
        self._transfers: dict[TransferId, StagedTransfer] = {}
        self._sessions: dict[SessionId, None] = {}
        """With a folder."""
        self._going: dict[str, None] = {}
        """Folders that are being removed now."""
        self._opening: dict[TransferId, _OpenLock] = {}
        self._durable: dict[SessionId, None] = {}
        """Sessions whose folder is durable."""

    # -- the start ---------------------------------------------------------------------------------------------------

    async def recover(self) -> None:
        """Keeps what is complete on disk, and nothing else. Whether the sessions are still open is known later, and
        `drop_session` removes those that are not."""
        disk, root = self._disk, self._root
        await make_durable_folder(disk, root)
        await self.remove_leftovers()
        for name in disk.list_folder(root):
            session = parse_uuid(name)
            if session is None:
                continue
            self._sessions[SessionId(session)] = None
            for below in disk.list_folder(f"{root}/{name}"):
                transfer = parse_uuid(below)
                if transfer is not None:
                    await self._recover_one(SessionId(session), TransferId(transfer))

    async def _recover_one(self, session: SessionId, transfer: TransferId) -> None:
        folder = transfer_folder(self._root, session, transfer)
        # A seal that a killed process left only in the page cache has already counted for a caller that saw it.
        await self._disk.sync_folder(folder)
        try:
            target, sealed = await read_target(self._disk, folder), await read_sealed(self._disk, folder)
        except (Corruption, Refused) as failure:
            self._context.report("staging.unreadable", {"folder": folder, "cause": failure.message})
            target, sealed = None, None
        if target is None:
            await self._disk.run(partial(self._disk.remove_folder, folder))
            return
        staged = StagedTransfer(
            session=session,
            transfer=transfer,
            folder=folder,
            target=target,
            sealed=sealed,
            sealed_is_durable=sealed is not None,
        )
        attempts = [found for name in self._disk.list_folder(folder) if (found := parse_uuid(name)) is not None]
        staged.state = StagingState(attempts=frozenset(AttemptId(one) for one in attempts))
        if sealed is not None:
            staged.state = StagingState(
                TransferPhase.SEALED, frozenset(sealed.attempts), sorted_attempts(sealed.attempts)
            )
        self._transfers[transfer] = staged

    # -- targets -----------------------------------------------------------------------------------------------------

    async def open(
        self, session: SessionId, transfer: TransferId, target: TargetFile, size_bytes: int = 0
    ) -> StagedTransfer:
        """Idempotent. Raises `Refused` where the transfer was opened for something else."""
        # One call at a time per transfer. Transfers of a job share a folder and a disk, and so their syncs.
        opening = self._opening.setdefault(transfer, _OpenLock())
        opening.callers += 1
        try:
            async with opening.lock:
                return await self._open(session, transfer, target, size_bytes)
        finally:
            opening.callers -= 1
            if not opening.callers:
                del self._opening[transfer]

    async def _open(
        self, session: SessionId, transfer: TransferId, target: TargetFile, size_bytes: int
    ) -> StagedTransfer:
        found = self._transfers.get(transfer)
        if found is not None:
            _check_same(found, session, target)
            self._context.check_space(size_bytes)
            found.state = found.state.opened()
            await self._make_seal_durable(found)
            return found
        self._check_room(size_bytes)
        folder = transfer_folder(self._root, session, transfer)
        try:
            await self._create(session, folder, target)
        except BaseException:
            self._disk.remove_folder(folder)
            raise
        opened = self._transfers[transfer] = StagedTransfer(
            session=session, transfer=transfer, folder=folder, target=target
        )
        return opened

    async def _make_seal_durable(self, staged: StagedTransfer) -> None:
        """A caller that finds it sealed does not seal it again."""
        if staged.sealed is not None and not staged.sealed_is_durable:
            async with staged.changing:
                await self._disk.sync_folder(staged.folder)
                staged.sealed_is_durable = True

    async def _create(self, session: SessionId, folder: str, target: TargetFile) -> None:
        disk = self._disk
        above = f"{self._root}/{session}"
        self._sessions[session] = None
        if session not in self._durable:
            await make_durable_folder(disk, above)
            self._durable[session] = None
        disk.make_folder(folder)
        disk.create(f"{folder}/{self._context.machine}").close()
        await write_target(disk, folder, target)
        await disk.sync_folder(above)

    def _check_room(self, size_bytes: int) -> None:
        limits = self._context.limits
        staged = sum(1 for one in self._transfers.values() if one.state.phase is not TransferPhase.RELEASED)
        if staged + len(self._opening) > limits.transfers_max:
            raise Overloaded(f"{limits.transfers_max} transfers are staged on this node already")
        self._context.check_space(size_bytes)

    def find(self, session: SessionId, transfer: TransferId) -> StagedTransfer:
        found = self._transfers.get(transfer)
        if found is None or found.session != session:
            raise Refused(f"no transfer {transfer} of session {session} is staged here", advice="open it first")
        return found

    def is_released(self, session: SessionId, transfer: TransferId) -> bool:
        """As far as this process remembers."""
        found = self._transfers.get(transfer)
        return found is not None and found.session == session and found.state.phase is TransferPhase.RELEASED

    async def release(self, session: SessionId, transfers: Iterable[TransferId]) -> list[TransferId]:
        """Returns those that are released now. A transfer that does not exist is no error. The next sweep removes the
        files: freeing the space of a job takes a while, and the caller need not wait for it."""
        # Always in the same order: two callers that lock in different orders would deadlock.
        known = [self._transfers.get(transfer) for transfer in sorted(set(transfers))]
        found = [one for one in known if one is not None and one.session == session]
        async with AsyncExitStack() as held:
            for staged in found:
                await held.enter_async_context(staged.changing)
                staged.state = staged.state.released()
                staged.received.clear()
            await self._disk.run(partial(self._rename_aside, self._new_names([staged.folder for staged in found])))
        return [staged.transfer for staged in found]

    async def drop_attempt(self, staged: StagedTransfer, attempt: AttemptId) -> None:
        """Removes what it has staged."""
        staged.received.pop(attempt, None)
        if attempt not in staged.state.winners:
            staged.state = staged.state.without(attempt)
            folder = staged.attempt_folder(attempt)
            await self._disk.run(partial(self._disk.remove_folder, folder))

    # -- the end of sessions -----------------------------------------------------------------------------------------

    @property
    def sessions(self) -> tuple[SessionId, ...]:
        """With something on disk."""
        return tuple(self._sessions)

    def notice_orphans(self) -> None:
        """An abandoned task may have made the folder of a session again after it was dropped."""
        for name in self._disk.list_folder(self._root):
            session = parse_uuid(name)
            if session is not None:
                self._sessions.setdefault(SessionId(session), None)

    async def drop_session(self, session: SessionId) -> None:
        """Removes all of it, once nothing of the session can have an effect any more (INV-XFER-5)."""
        for staged in [one for one in self._transfers.values() if one.session == session]:
            del self._transfers[staged.transfer]
        self._durable.pop(session, None)
        await self._remove(f"{self._root}/{session}")
        self._sessions.pop(session, None)

    async def remove_leftovers(self) -> None:
        """Of interrupted removals, and of released transfers."""
        for name in self._disk.list_folder(self._root):
            if name.startswith(REMOVING_PREFIX) and name not in self._going:
                await self._disk.run(partial(self._disk.remove_folder, f"{self._root}/{name}"))

    async def _remove(self, folder: str) -> None:
        """INV-XFER-3: rename the folder in one step, then remove it file by file. A shard may be adopting from it,
        under a guard that this process does not know: it lists a sealed folder and links what it finds, and would take
        a half-removed folder for a complete layer."""
        names = self._new_names([folder])
        self._going |= dict.fromkeys(names)
        try:
            await self._disk.run(partial(self._remove_renamed, names))
        finally:
            for name in names:
                del self._going[name]

    def _new_names(self, folders: Sequence[str]) -> dict[str, str]:
        return {f"{REMOVING_PREFIX}{self._context.rng.bytes(8).hex()}": folder for folder in folders}

    def _rename_aside(self, names: Mapping[str, str]) -> None:
        """Blocks."""
        for name, folder in names.items():
            if self._disk.exists(folder):
                self._disk.rename(folder, f"{self._root}/{name}")

    def _remove_renamed(self, names: Mapping[str, str]) -> None:
        """Blocks."""
        self._rename_aside(names)
        for name in names:
            self._disk.remove_folder(f"{self._root}/{name}")

    def statuses(self, session: SessionId | None) -> tuple[StagingStatus, ...]:
        shown = (one for one in self._transfers.values() if one.state.phase is not TransferPhase.RELEASED)
        return tuple(one.status for one in shown if session is None or one.session == session)


def _check_same(found: StagedTransfer, session: SessionId, target: TargetFile) -> None:
    if found.session != session:
        raise Refused(f"transfer {found.transfer} belongs to session {found.session}")
    if found.target == target:
        return
    if found.target.incarnation != target.incarnation:
        raise Stale(
            f"transfer {found.transfer} was opened for another incarnation of its replica",
            advice="start the job again: what was staged is not for the current replica",
        )
    raise Refused(f"transfer {found.transfer} was opened for something else: {found.target}")


def parse_uuid(name: str) -> uuid.UUID | None:
    """From the name of a folder; None where it is not a uuid."""
    try:
        found = uuid.UUID(name)
    except ValueError:
        return None
    return found if str(found) == name else None
