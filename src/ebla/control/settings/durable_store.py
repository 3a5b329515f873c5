"""A node's settings on disk: a file with everything at one sequence, and a log of the updates since.

One update is one record of the log, so the cost of a change does not depend on how many keys there are. When the log
has grown as large as the file, the file is rewritten: each byte of the log pays for one of the file.

A crash leaves the old file or the new one. Records that the file covers are skipped. If either is damaged or missing,
the node does not start: damaged settings are never taken for an empty store.
"""

import asyncio
import itertools
import struct
import uuid
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Self

import msgspec

from ebla.aio.wakeup import Wakeup
from ebla.journal.checked_file import discard_temporary, read_checked_file, replace_file
from ebla.journal.recovery import make_durable_folder
from ebla.journal.segmented_log import LogFailed, SegmentedLog
from ebla.model.errors import Corruption, DiskFull, EblaError, Refused, Unavailable
from ebla.model.identity import HostId
from ebla.ports.disk import Disk
from ebla.ports.environment import Environment
from ebla.settings_store.node_store import Decision, NodeHeader, SettingsStore, Update
from ebla.settings_store.registry import Registry

FILE_NAME = "settings"
LOG_NAME = "log"
SETTINGS_FORMAT = 1
SEGMENT_BYTES = 4 << 20
LOG_BYTES_MIN = 1 << 20
"""The file is not rewritten for a shorter log."""
ENTRIES_PER_PART = 500
COMPACT_S = 5.0
IDLE_S = 3_600.0

_LENGTH = struct.Struct("<I")
_encoder = msgspec.msgpack.Encoder(uuid_format="bytes")
_updates = msgspec.msgpack.Decoder(Update)


class _FileHead(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    format: int
    log_id: int
    sequence: int
    """The file has every update of the log up to this one."""


class DurableSettings:
    """`work` runs until cancelled and makes all changes, one after another. A caller that is cancelled leaves its
    change to the worker: a record that is in the log and not in memory would let a counter be used twice."""

    def __init__(self, disk: Disk, folder: str, log: SegmentedLog, store: SettingsStore) -> None:
        self._disk = disk
        self._path = f"{folder}/{FILE_NAME}"
        self._log = log
        self.store = store
        self._waiting: deque[_Job] = deque()
        self._has_ended = False
        self._wakeup = Wakeup()
        self._log_bytes = 0
        self._file_bytes = 0
        self.is_new = False
        """It was created at this start."""
        self.serial = 0
        """How many changes there were since the start."""
        self.on_change: Callable[[tuple[str, ...]], None] = _ignore
        """Called after each change with its keys."""

    @classmethod
    async def open(cls, environment: Environment, folder: str, host: HostId, registry: Registry | None = None) -> Self:
        """Creates the store, in reset, if there is none. Raises `Corruption` if it cannot be read."""
        disk, rng = environment.disk, environment.rng
        try:
            await make_durable_folder(disk, folder)
            log = await SegmentedLog.open(disk, rng, f"{folder}/{LOG_NAME}", SEGMENT_BYTES)
            store = SettingsStore(host, NodeHeader(actor=uuid.UUID(int=0)), registry)
            opened = cls(disk, folder, log, store)
            discard_temporary(disk, opened._path)
            if not disk.exists(opened._path) and log.next_sequence == log.first_sequence == 1:
                # New, or killed before the first file was written: nothing was ever acknowledged.
                store.header = NodeHeader(actor=rng.uuid(), in_reset=True)
                await opened._write_file(store)
                opened.is_new = True
            else:
                await opened._load()
        except (Corruption, FileNotFoundError) as damage:
            message = damage.message if isinstance(damage, Corruption) else f"{folder}/{FILE_NAME} is missing"
            raise Corruption(message, advice=_repair_advice(folder)) from damage
        return opened

    async def _load(self) -> None:
        data = await read_checked_file(self._disk, self._path)
        parts = _parts(data)
        try:
            head = msgspec.msgpack.decode(next(parts), type=_FileHead)
            if head.format > SETTINGS_FORMAT:
                raise Refused(
                    f"{self._path} has format {head.format}, this program knows formats up to {SETTINGS_FORMAT}",
                    advice="run the version that wrote it, or a newer one",
                )
            if head.log_id != self._log.log_id:
                raise Corruption(f"{self._path} belongs to another log than the one beside it")
            if not self._log.first_sequence - 1 <= head.sequence < self._log.next_sequence:
                raise Corruption(f"the log beside {self._path} does not reach from {head.sequence} on")
            for part in parts:
                self.store.apply(_updates.decode(part))
            async for batch in self._log.read(head.sequence + 1):
                for record in batch.records:
                    self.store.apply(_updates.decode(record))
                    self._log_bytes += len(record)
        except (msgspec.MsgspecError, StopIteration) as error:
            raise Corruption(f"{self._path} or its log does not decode ({error})") from error
        self._file_bytes = len(data)

    # ---- changes

    async def run(self, decide: Callable[[SettingsStore], Decision]) -> Decision:
        """Decides, and makes it durable before anyone can see it. Raises what `decide` raises, or `DiskFull`, and
        nothing happened."""
        return await self._submit(partial(self._change, decide))

    async def replace(self, make: Callable[[SettingsStore], SettingsStore]) -> None:
        """Replaces everything, in one durable step."""
        await self._submit(partial(self._replace, make))

    async def _submit(self, work: "Work") -> Decision:
        if self._has_ended:
            raise _stopped()
        result: asyncio.Future[Decision] = asyncio.get_running_loop().create_future()
        self._waiting.append((work, result))
        self._wakeup.wake()
        try:
            return await asyncio.shield(result)
        except asyncio.CancelledError:
            if (work, result) in self._waiting:
                self._waiting.remove((work, result))
            elif not result.done():
                # It is being written and will take effect. An order counts as running until then: else the node could
                # grant its lease again before. The registry and the caller may both cancel it, one after the other.
                while not result.done():
                    with suppress(asyncio.CancelledError):
                        await asyncio.wait([result])
                result.exception()  # seen: the caller is cancelled
            raise

    async def work(self) -> None:
        """Until cancelled. Raises `LogFailed` or `OSError` if the disk failed: whether the last change is durable is
        known after a restart only, so the node must stop."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._compact())
                while True:
                    while self._waiting:
                        await self._do(*self._waiting.popleft())
                    await self._wakeup.wait(IDLE_S)
        finally:
            self._has_ended = True
            for _, result in self._waiting:
                _settle(result, _stopped())

    async def _do(self, work: "Work", result: "asyncio.Future[Decision]") -> None:
        try:
            decision = await work()
        except (LogFailed, OSError) as failure:
            _settle(result, LogFailed(f"the settings of this node failed: {failure}"))
            raise
        except EblaError as error:
            _settle(result, error)
        except BaseException:  # cancelled, or a bug: the caller waits for the result through every cancellation
            _settle(result, LogFailed("the settings of this node have stopped before a change was durable"))
            raise
        else:
            _settle(result, decision)

    async def _change(self, decide: Callable[[SettingsStore], Decision]) -> Decision:
        decision = decide(self.store)
        update = decision.update
        if update is not None:
            record = _encoder.encode(update)
            if self._log.append_now([record]) is None:
                await self._log.append([record])
            self._log_bytes += len(record)
            self.store.apply(update)
            self.serial += 1
            self.on_change((*(key for key, _ in update.puts), *update.erased))
        return decision

    async def _replace(self, make: Callable[[SettingsStore], SettingsStore]) -> Decision:
        before, after = self.store, make(self.store)
        await self._write_file(after)
        self.store = after
        self.serial += 1
        self.on_change(tuple(sorted({**before.entries, **after.entries})))
        return Decision()

    # ---- the file

    async def _compact(self) -> None:
        """Rewrites the file whenever the log has grown enough."""
        while True:
            if self._log_bytes > max(LOG_BYTES_MIN, self._file_bytes):
                with suppress(DiskFull):  # the log continues, and the next attempt may find room
                    await self._submit(self._begin_file)
            await asyncio.sleep(COMPACT_S)

    async def _begin_file(self) -> Decision:
        await self._write_file(self.store)
        return Decision()

    async def _write_file(self, store: SettingsStore) -> None:
        sequence = self._log.next_sequence - 1
        head = _FileHead(format=SETTINGS_FORMAT, log_id=self._log.log_id, sequence=sequence)
        written_bytes = 0

        def content() -> Iterator[bytes]:
            nonlocal written_bytes
            for part in itertools.chain((head,), _as_updates(store)):
                data = _encoder.encode(part)
                written_bytes += len(data)
                yield _LENGTH.pack(len(data)) + data

        await replace_file(self._disk, self._path, content())
        self._file_bytes, self._log_bytes = written_bytes, 0
        await self._log.drop_before(sequence + 1)

    async def close(self) -> None:
        await self._log.close()


Work = Callable[[], Awaitable[Decision]]
_Job = tuple[Work, "asyncio.Future[Decision]"]


def _settle(result: "asyncio.Future[Decision]", outcome: Decision | EblaError) -> None:
    """Unless the caller was cancelled."""
    if result.done():
        return
    if isinstance(outcome, Decision):
        result.set_result(outcome)
    else:
        result.set_exception(outcome)
        result.exception()  # marks it as retrieved: the caller may be gone


def _stopped() -> Unavailable:
    return Unavailable("the settings of this node have stopped", advice="nothing was changed; start the node again")


def _as_updates(store: SettingsStore) -> Iterator[Update]:
    """The updates that make an empty store equal to this one."""
    header = store.header
    yield Update(header=header, last_valid=tuple(store.last_valid.items()))
    entries = list(store.entries.items())
    for start in range(0, len(entries), ENTRIES_PER_PART):
        yield Update(header=header, puts=tuple(entries[start : start + ENTRIES_PER_PART]))
    for records in store.history.values():
        yield Update(header=header, history=tuple(records))


def _parts(data: bytes) -> Iterator[bytes]:
    start = 0
    while start < len(data):
        (length,) = _LENGTH.unpack_from(data, start)
        start += _LENGTH.size + length
        yield data[start - length : start]


def _repair_advice(folder: str) -> str:
    return (
        f"check the device, move {folder} away and start the node again: it then takes its settings from the other "
        "nodes; changes that only this node had are lost"
    )


def _ignore(_keys: tuple[str, ...]) -> None:
    pass
