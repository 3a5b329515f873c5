"""Files that streams write into attempts. Nothing here counts before the seal."""

import asyncio
import re
from dataclasses import dataclass, field
from functools import partial

from ebla.bulk.staged_rows import StagedRows, find_staged_rows
from ebla.bulk.staging import StagedTransfer, Staging, StagingDeps
from ebla.bulk.stream_service import IncomingPut
from ebla.model.errors import Corruption, DiskFull, InvalidRequest, Refused, Stale
from ebla.model.identity import AttemptId, TransferId
from ebla.model.transfers import ROWS_NAME, StagingKind
from ebla.ports.disk import Disk, File
from ebla.storage.codec.checksums import crc32
from ebla.storage.codec.row_file import whole_records_bytes
from ebla.storage.codec.staging_format import SEALED_LAYERS_MAX
from ebla.wire.transfer_messages import FlightPut, PutAnswer

READ_BYTES = 4 << 20
WRITE_BYTES = 64 << 10
_FILE_NAME = re.compile(r"([0-9]{1,4})/([A-Za-z0-9_][A-Za-z0-9_.-]{0,200})")


def layer_index(name: str) -> int:
    """The place of the layer in `<layer>/<file>`. Raises `InvalidRequest`."""
    matched = _FILE_NAME.fullmatch(name)
    if matched is None or int(matched[1]) >= SEALED_LAYERS_MAX or str(int(matched[1])) != matched[1]:
        raise InvalidRequest(f"{name[:80]!r} is no name for a staged file")
    return int(matched[1])


def check_staged_name(kind: StagingKind, name: str) -> None:
    match kind:
        case StagingKind.FILES:
            layer_index(name)
        case StagingKind.ROWS:
            if name != ROWS_NAME:
                raise InvalidRequest(f"of rows only {ROWS_NAME!r} is staged, not {name[:80]!r}")


def file_checksum(disk: Disk, path: str, size_bytes: int | None = None) -> int:
    """CRC-32 of a file, or of its beginning. Blocks; for a worker thread."""
    file = disk.open(path)
    try:
        return _checksum(file, file.size() if size_bytes is None else size_bytes)
    finally:
        file.close()


def _checksum(file: File, size_bytes: int) -> int:
    checksum = offset = 0
    while offset < size_bytes:
        piece = file.read(offset, min(READ_BYTES, size_bytes - offset))
        if not piece:
            raise Corruption(f"{file.path} became shorter while it was read")
        checksum = crc32(piece, checksum)
        offset += len(piece)
    return checksum


@dataclass(slots=True, eq=False, kw_only=True)
class _OpenPut:
    place: IncomingPut
    staged: StagedTransfer
    file: File
    writing: asyncio.Lock = field(default_factory=asyncio.Lock)
    is_taken: bool = False
    """From the stream that had it. The file is closed once no write of it is under way."""


_Key = tuple[TransferId, AttemptId, str]


class OpenPuts:
    def __init__(self, parts: StagingDeps, staging: Staging) -> None:
        self._parts = parts
        self._disk = parts.disk
        self._staging = staging
        self._open: dict[_Key, _OpenPut] = {}

    async def open(self, staged: StagedTransfer, put: FlightPut) -> IncomingPut:
        """Held by a guard."""
        target = staged.target
        check_staged_name(target.kind, put.name)
        if put.size_bytes < 0 or put.offset < 0 or (target.kind is StagingKind.FILES and put.offset > put.size_bytes):
            raise InvalidRequest(f"a put of {put.size_bytes} bytes from {put.offset} on makes no sense")
        staged.state = staged.state.put(put.attempt, self._attempts_max(target.kind))
        try:
            return await self._open_file(staged, put)
        except DiskFull:
            await self._drop(staged, put.attempt)
            raise

    async def _open_file(self, staged: StagedTransfer, put: FlightPut) -> IncomingPut:
        target = staged.target
        key = (staged.transfer, put.attempt, put.name)
        await self._take_over(key)
        file, is_new = self._file(staged, put)
        try:
            received = checksum = 0
            if not is_new:
                received = await self._disk.run(partial(_received, file, put, target.kind))
                checksum = await self._disk.run(partial(_checksum, file, received))
            if received < put.offset or (target.kind is StagingKind.FILES and received > put.size_bytes):
                raise Refused(
                    f"{put.name} of attempt {put.attempt} has {received} bytes here; the sender goes on "
                    f"at {put.offset} of {put.size_bytes}",
                    advice="begin a new attempt",
                )
            self._staging.check_space(max(0, put.size_bytes - received))
            # Another stream may have come for the same, or a seal begun, while this one looked.
            staged.state = staged.state.put(put.attempt, self._attempts_max(target.kind))
        except BaseException:
            file.close()
            raise
        self._take_away(key)
        place = IncomingPut(
            staged.session,
            staged.transfer,
            put.attempt,
            put.name,
            target.kind,
            target.range,
            put.size_bytes,
            received,
            checksum,
        )
        self._open[key] = _OpenPut(place=place, staged=staged, file=file)
        return place

    def _attempts_max(self, kind: StagingKind) -> int:
        return self._parts.limits.runs_max if kind is StagingKind.ROWS else self._parts.limits.attempts_max

    def _file(self, staged: StagedTransfer, put: FlightPut) -> tuple[File, bool]:
        """And whether it was made here."""
        folder = staged.attempt_folder(put.attempt)
        path = f"{folder}/{put.name}"
        self._disk.make_folder(path.rpartition("/")[0])
        try:
            return self._disk.create(path), True
        except FileExistsError:
            return self._disk.open(path), False

    def rows_of(self, staged: StagedTransfer, attempt: AttemptId) -> StagedRows:
        """What an attempt has put, for a further replica."""
        return find_staged_rows(self._disk, staged, attempt)

    async def append(self, place: IncomingPut, data: bytes | memoryview) -> None:
        """Held by a guard. Raises `Stale` where another stream has taken the place."""
        opened = self._opened(place)
        staged = opened.staged
        staged.state = staged.state.put(place.attempt, self._attempts_max(place.kind))
        end = place.received_bytes + len(data)
        if place.kind is StagingKind.FILES and end > place.size_bytes:
            raise InvalidRequest(f"{place.name} was announced with {place.size_bytes} bytes, and {end} came")
        try:
            self._staging.check_space(len(data))
            checksum = await self._write(opened, data)
        except DiskFull:
            await self._drop(staged, place.attempt)
            raise
        place.received_bytes, place.checksum = end, checksum
        staged.received[place.attempt] = staged.received.get(place.attempt, 0) + len(data)

    async def _write(self, opened: _OpenPut, data: bytes | memoryview) -> int:
        try:
            async with opened.writing:
                checksum = await self._disk.run(partial(_written, opened.file, opened.place, memoryview(data)))
        finally:
            if opened.is_taken:
                opened.file.close()
        self._opened(opened.place)
        return checksum

    def finish(self, place: IncomingPut) -> PutAnswer:
        self._opened(place)
        if place.kind is StagingKind.FILES and place.received_bytes != place.size_bytes:
            raise Refused(
                f"{place.name} has {place.received_bytes} bytes of the {place.size_bytes} that were announced",
                advice="send the rest",
            )
        return PutAnswer(place.received_bytes, place.checksum)

    def close(self, place: IncomingPut) -> None:
        key = (place.transfer, place.attempt, place.name)
        opened = self._open.get(key)
        if opened is not None and opened.place is place:
            self._take_away(key)

    def close_transfer(self, transfer: TransferId) -> None:
        """Their files are closed here, so that a seal does not find a writer that it knows to be over."""
        for key in [key for key in self._open if key[0] == transfer]:
            self._take_away(key)

    async def _drop(self, staged: StagedTransfer, attempt: AttemptId) -> None:
        """For want of space it cannot be finished, and what it holds may be what others want."""
        for key in [key for key in self._open if key[:2] == (staged.transfer, attempt)]:
            self._take_away(key)
        await self._staging.drop_attempt(staged, attempt)

    def _take_away(self, key: _Key) -> None:
        opened = self._open.pop(key, None)
        if opened is not None:
            opened.is_taken = True
            if not opened.writing.locked():
                opened.file.close()

    async def _take_over(self, key: _Key) -> None:
        """What the stream before was just writing has arrived afterwards, and is not found to be missing."""
        before = self._open.get(key)
        self._take_away(key)
        if before is not None:
            async with before.writing:
                pass

    def _opened(self, place: IncomingPut) -> _OpenPut:
        opened = self._open.get((place.transfer, place.attempt, place.name))
        if opened is None or opened.place is not place:
            raise Stale(
                f"{place.name} of attempt {place.attempt} is not written by this stream any more",
                advice="another stream has taken its place, or the transfer has ended",
            )
        return opened


def _received(file: File, put: FlightPut, kind: StagingKind) -> int:
    """Where the sender goes on; whatever lies behind that is cut off."""
    match kind:
        case StagingKind.FILES:
            return file.size()
        case StagingKind.ROWS:
            whole = 0
            if put.offset:
                try:
                    whole = whole_records_bytes(file)
                except Corruption:
                    whole = 0
            if file.size() > whole:
                file.truncate(whole)
            return whole


def _written(file: File, place: IncomingPut, data: memoryview) -> int:
    """Not all at once: a write of megabytes makes the kernel look for as much memory in one piece, which costs several
    times the copy on a machine that has to get it first."""
    checksum = place.checksum
    for start in range(0, len(data), WRITE_BYTES):
        piece = bytes(data[start : start + WRITE_BYTES])
        file.write(place.received_bytes + start, piece)
        checksum = crc32(piece, checksum)
    return checksum
