"""A Raft peer's storage: term and vote, entries, and the snapshot they continue.

The journal never removes records, so Raft's replacements are records too: entries replace everything from the first
one's index on, and a snapshot mark covers everything up to its index. Replaying all records in order (`LogReplay`)
gives the state the core starts from.

Snapshots are files of their own beside the log. The mark in the log is their commit point: a file without a mark is
removed at the next start, a mark without its file is `Corruption`.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence
from functools import partial
from typing import Self

import msgspec

from ebla.aio.fifo_lock import FifoLock
from ebla.journal.checked_file import TEMPORARY_SUFFIX, AtomicFileWriter, read_checked_chunks, replace_file
from ebla.journal.recovery import make_durable_folder
from ebla.journal.segmented_log import SEGMENT_BYTES, LogFailed, SegmentedLog
from ebla.model.advice import replace_node_advice
from ebla.model.errors import Corruption, DiskFull, TooLarge
from ebla.ports.disk import Disk
from ebla.ports.rng import Rng
from ebla.raft.effects import LogWrite
from ebla.raft.messages import NO_PEER, Entry, HardState, SnapshotMeta
from ebla.raft.state import RecoveredState

ADVICE = f"do not start this node with part of its log: {replace_node_advice()}"
_SNAPSHOT_PREFIX = "snapshot-"


class RaftRecord(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """One record of the journal, applied in the order of the fields: a snapshot comes before the entries behind it."""

    hard_state: HardState | None
    snapshot: SnapshotMeta | None
    entries: tuple[Entry, ...] = ()
    replaces_log: bool = False
    """The snapshot is a leader's and replaces the log; otherwise it is our own and the entries behind it stay.

    Stored rather than inferred by comparing the snapshot's last entry with ours: that entry may be in a segment that
    was dropped since, and then an intact log would look like a replaced one."""


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(RaftRecord)
_meta_decoder = msgspec.msgpack.Decoder(SnapshotMeta)


class InconsistentLog(Exception):
    """Intact records that no Raft log can have written in this order."""


class LogReplay:
    """Rebuilds the state from the records. Pure."""

    def __init__(self) -> None:
        self._hard_state = HardState()
        self._snapshot = SnapshotMeta()
        self._entries: list[Entry] = []

    def apply(self, record: RaftRecord) -> None:
        """Raises `InconsistentLog`."""
        if record.hard_state is not None:
            _check_hard_state(self._hard_state, record.hard_state)
            self._hard_state = record.hard_state
        if record.snapshot is not None:
            self._continue_from(record.snapshot, replaces_log=record.replaces_log)
        if record.entries:
            self._extend(record.entries)

    def finish(self) -> RecoveredState:
        """Raises `InconsistentLog` if something is missing between the snapshot, the entries and the hard state."""
        snapshot, entries, hard_state = self._snapshot, self._entries, self._hard_state
        if entries and entries[0].index != snapshot.index + 1:
            raise InconsistentLog(f"entries begin at {entries[0].index}, but the snapshot ends at {snapshot.index}")
        last = entries[-1] if entries else None
        last_index, last_term = (last.index, last.term) if last else (snapshot.index, snapshot.term)
        if hard_state.commit > last_index:
            raise InconsistentLog(f"entries up to {hard_state.commit} were committed, but they end at {last_index}")
        if last_term > hard_state.term:
            raise InconsistentLog(f"an entry of term {last_term} in a log that has only seen term {hard_state.term}")
        commit = max(hard_state.commit, snapshot.index)
        return RecoveredState(msgspec.structs.replace(hard_state, commit=commit), snapshot, tuple(entries))

    def _continue_from(self, snapshot: SnapshotMeta, *, replaces_log: bool) -> None:
        if snapshot.index < self._snapshot.index:
            raise InconsistentLog(f"snapshot {snapshot.index} after snapshot {self._snapshot.index}")
        covered = snapshot.index + 1 - self._entries[0].index if self._entries else 0
        self._entries = [] if replaces_log else self._entries[max(covered, 0) :]
        self._snapshot = snapshot

    def _extend(self, entries: Sequence[Entry]) -> None:
        # A snapshot may cover entries that other peers committed and that are not written here yet.
        entries = [entry for entry in entries if entry.index > self._snapshot.index]
        if not entries:
            return
        # If segments were dropped, the remaining old entries may begin anywhere; `finish` checks that the newest
        # snapshot and the entries connect.
        keep = entries[0].index - self._entries[0].index if self._entries else 0
        if keep > len(self._entries):
            raise InconsistentLog(f"entry {entries[0].index} follows entry {self._entries[-1].index}")
        del self._entries[max(keep, 0) :]
        self._entries.extend(entries)


def _check_hard_state(before: HardState, after: HardState) -> None:
    """Terms never decrease, and there is one vote per term."""
    if after.term < before.term:
        raise InconsistentLog(f"term {after.term} after term {before.term}")
    if after.term == before.term and before.vote != NO_PEER and after.vote != before.vote:
        raise InconsistentLog(f"votes for {before.vote} and for {after.vote} in term {after.term}")


class EntrySequences:
    """Which record holds the last version of an entry. Pure.

    Replacing an entry replaces all behind it, so these sequences only grow along the log: no entry from an index on is
    in a record older than that of the index itself.
    """

    def __init__(self) -> None:
        self._runs: list[tuple[int, int]] = []

    def note(self, sequence: int, record: RaftRecord) -> None:
        if record.replaces_log:
            self._runs.clear()
        if record.entries:
            first = record.entries[0].index
            while self._runs and self._runs[-1][0] >= first:
                self._runs.pop()
            self._runs.append((first, sequence))

    def oldest_needed(self, index: int, otherwise: int) -> int:
        """The record that holds `index`, if the log reaches that far; drops what only older entries need."""
        holding = sum(1 for first, _ in self._runs if first <= index)
        self._runs = self._runs[max(holding - 1, 0) :]
        return min(self._runs[0][1], otherwise) if self._runs else otherwise


class RaftStorage:
    """Writes one batch at a time, in call order. After `LogFailed` it must be opened again."""

    def __init__(self, disk: Disk, folder: str, journal: SegmentedLog) -> None:
        self._disk = disk
        self._folder = folder
        self._journal = journal
        self._sequences = EntrySequences()
        self._hard_state = HardState()
        self._snapshot = SnapshotMeta()
        self._is_outcome_unknown = False
        self._lock = FifoLock()

    @classmethod
    async def open(
        cls, disk: Disk, rng: Rng, folder: str, segment_bytes: int = SEGMENT_BYTES
    ) -> tuple[Self, RecoveredState]:
        """Raises `Corruption`, or `Refused` for a newer format."""
        await make_durable_folder(disk, folder)
        journal = await SegmentedLog.open(disk, rng, f"{folder}/log", segment_bytes)
        log = cls(disk, folder, journal)
        recovered = await log._replay()
        await log._check_snapshot(recovered.snapshot)
        log._remove_unnamed()
        return log, recovered

    @property
    def log_id(self) -> int:
        return self._journal.log_id

    async def persist(self, writes: Sequence[LogWrite]) -> None:
        """Durable on return, in order and atomically: the answers may leave. Raises `DiskFull`, and nothing happened.

        A snapshot that a write names comes from the leader and must have been stored before.
        """
        if not self._lock.try_acquire():
            await self._lock.acquire()
        try:
            records, hard_state = self._records_of(writes)
            if records:
                await self._append(records, hard_state)
            else:
                self._hard_state = hard_state
        finally:
            self._lock.release()

    def persist_now(self, writes: Sequence[LogWrite]) -> bool:
        """The same without waiting, if that is possible (`SegmentedLog.append_now`). False: nothing happened, use
        `persist`."""
        if self._lock.is_held or self._is_outcome_unknown:
            return False
        records, hard_state = self._records_of(writes)
        if any(record.snapshot is not None for record in records):
            return False
        if records:
            try:
                last = self._journal.append_now([_encoder.encode(record) for record in records])
            except (DiskFull, TooLarge):
                return False
            except BaseException:
                self._is_outcome_unknown = True
                raise
            if last is None:
                return False
            self._note(records, last)
        self._hard_state = hard_state
        return True

    def _records_of(self, writes: Sequence[LogWrite]) -> tuple[list[RaftRecord], HardState]:
        """The journal records, and the hard state after all of them."""
        records: list[RaftRecord] = []
        hard_state = self._hard_state
        for write in writes:
            hard_state = write.hard_state or hard_state
            if write.needs_disk:
                replaces_log = write.snapshot is not None
                records.append(
                    RaftRecord(
                        hard_state=hard_state, snapshot=write.snapshot, entries=write.entries, replaces_log=replaces_log
                    )
                )
        return records, hard_state

    def record_commit_hint(self, hard_state: HardState | None) -> bool:
        """Records a write that needs no disk, without waiting. False if another write is in progress, whose completion
        would undo it: then use `persist`."""
        if self._lock.is_held:
            return False
        self._hard_state = hard_state or self._hard_state
        return True

    async def store_snapshot(self, meta: SnapshotMeta, content: Iterable[bytes]) -> None:
        """Writes the snapshot's file: durable, but not yet part of the log. `content` in chunks; written in steps."""
        await replace_file(self._disk, self._snapshot_path(meta), _with_meta(meta, content))

    async def begin_snapshot(self, meta: SnapshotMeta, tag: str) -> AtomicFileWriter:
        """The same in steps, for a snapshot that arrives in chunks. It is stored once it is placed. Several files for
        one snapshot at once need different tags; what a crash leaves of them is removed at the next start."""
        replacement = AtomicFileWriter(self._disk, self._snapshot_path(meta), f".{tag}")
        try:
            await replacement.append([_encoder.encode(meta)])
        except BaseException:
            replacement.discard()
            raise
        return replacement

    async def adopt_snapshot(self, meta: SnapshotMeta) -> None:
        """A stored snapshot of our own state: from now on the log begins after it."""
        async with self._lock:
            if meta.index > self._snapshot.index:
                await self._append([RaftRecord(hard_state=self._hard_state, snapshot=meta)], self._hard_state)

    async def read_snapshot(self, meta: SnapshotMeta) -> AsyncGenerator[bytes, None]:
        """The content as it was stored, in chunks. Raises `Corruption`."""
        pieces = read_checked_chunks(self._disk, self._snapshot_path(meta))
        try:
            await self._read_meta(pieces, meta)
            async for piece in pieces:
                yield piece
        finally:
            await pieces.aclose()

    async def close(self) -> None:
        """Also saves the last commit index, if there is room for it."""
        async with self._lock:
            if not self._is_outcome_unknown:
                try:
                    await self._journal.append(
                        [_encoder.encode(RaftRecord(hard_state=self._hard_state, snapshot=None))]
                    )
                except DiskFull:
                    pass
            await self._journal.close()

    async def _append(self, records: list[RaftRecord], hard_state: HardState) -> None:
        """The caller holds the lock: if a mark's hard state were read before another write and appended after it, a
        vote would be taken back."""
        mark: SnapshotMeta | None = None
        encoded: list[bytes] = []
        for record in records:
            if record.snapshot is not None:
                mark = record.snapshot
                assert self._disk.exists(self._snapshot_path(mark)), "a snapshot is stored before the log names it"
            encoded.append(_encoder.encode(record))
        if self._is_outcome_unknown:
            raise LogFailed(
                f"a write to the Raft log in {self._folder} was interrupted", advice="start this process again"
            )
        try:
            last = await self._journal.append(encoded)
        except (DiskFull, TooLarge):
            raise
        except BaseException:
            # For example cancelled during a sync. The records may be durable, so a later record that repeats the hard
            # state known here could take a vote back.
            self._is_outcome_unknown = True
            raise
        self._hard_state = hard_state
        first = self._note(records, last)
        if mark is not None:
            self._snapshot = mark
            await self._drop_superseded(first)

    def _note(self, records: Sequence[RaftRecord], last: int) -> int:
        """They are in the journal. Returns the sequence of the first."""
        first = last + 1 - len(records)
        for sequence, record in enumerate(records, first):
            self._sequences.note(sequence, record)
        return first

    async def _drop_superseded(self, mark_sequence: int) -> None:
        """The mark's record repeats the hard state, so of the records before it only those with entries behind it are
        needed."""
        needed = self._sequences.oldest_needed(self._snapshot.index + 1, mark_sequence)
        try:
            await self._journal.drop_before(needed)
        except DiskFull:
            # The batch itself is durable, and the caller must learn that. The next mark drops these segments too.
            return
        for name, index in self._snapshot_files():
            # Only those the log no longer needs: a newer one may be in the making.
            if index < self._snapshot.index and not name.endswith(TEMPORARY_SUFFIX):
                # Off the loop: freeing a hundred megabytes takes a file system tens of milliseconds.
                await self._disk.run(partial(self._disk.unlink, f"{self._folder}/{name}"))

    async def _replay(self) -> RecoveredState:
        image = LogReplay()
        try:
            async for batch in self._journal.read(self._journal.first_sequence):
                for sequence, data in enumerate(batch.records, batch.first_sequence):
                    record = _decoder.decode(data)
                    image.apply(record)
                    self._sequences.note(sequence, record)
            recovered = image.finish()
        except (InconsistentLog, msgspec.DecodeError) as failure:
            raise Corruption(
                f"the Raft log in {self._folder} is intact but inconsistent: {failure}", advice=ADVICE
            ) from failure
        self._hard_state = recovered.hard_state
        self._snapshot = recovered.snapshot
        return recovered

    async def _check_snapshot(self, meta: SnapshotMeta) -> None:
        if meta.index == 0:
            return
        path = self._snapshot_path(meta)
        if not self._disk.exists(path):
            raise Corruption(f"{path} is missing, but the log in {self._folder} continues it", advice=ADVICE)
        pieces = read_checked_chunks(self._disk, path)
        try:
            await self._read_meta(pieces, meta)
        finally:
            await pieces.aclose()

    async def _read_meta(self, pieces: AsyncIterator[bytes], expected: SnapshotMeta) -> None:
        path = self._snapshot_path(expected)
        try:
            found = _meta_decoder.decode(await anext(pieces, b""))
        except msgspec.DecodeError as failure:
            raise Corruption(f"{path} does not begin with its metadata ({failure})", advice=ADVICE) from failure
        if found != expected:
            raise Corruption(f"{path} holds snapshot {found}, but the log continues {expected}", advice=ADVICE)

    def _remove_unnamed(self) -> None:
        """Nothing is being stored yet: a file that the log does not name was never finished or is no longer needed."""
        for name, _ in self._snapshot_files():
            if f"{self._folder}/{name}" != self._snapshot_path(self._snapshot):
                self._disk.unlink(f"{self._folder}/{name}")

    def _snapshot_files(self) -> list[tuple[str, int]]:
        names = self._disk.list_folder(self._folder)
        return [(name, index) for name in names if (index := _snapshot_index(name)) is not None]

    def _snapshot_path(self, meta: SnapshotMeta) -> str:
        return f"{self._folder}/{_SNAPSHOT_PREFIX}{meta.index:020d}-{meta.term}"


def _with_meta(meta: SnapshotMeta, content: Iterable[bytes]) -> Iterable[bytes]:
    yield _encoder.encode(meta)
    yield from content


def _snapshot_index(name: str) -> int | None:
    """None for other files."""
    index = name.removeprefix(_SNAPSHOT_PREFIX).partition("-")[0]
    return int(index) if name.startswith(_SNAPSHOT_PREFIX) and index.isdecimal() else None
