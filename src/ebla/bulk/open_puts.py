"""Files that streams write into attempts. They have no effect before the seal."""

import asyncio
import re
from dataclasses import dataclass, field
from functools import partial

from ebla.bulk.staging import StagedTransfer, Staging
from ebla.bulk.stream_service import IncomingPut
from ebla.bulk.transfer_context import TransferContext
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
    """The number of the layer in `<layer>/<file>`. Raises `InvalidRequest`."""
    matched = _FILE_NAME.fullmatch(name)
    if matched is None or int(matched[1]) >= SEALED_LAYERS_MAX or str(int(matched[1])) != matched[1]:
        raise InvalidRequest(f"{name[:80]!r} is not a name for a staged file")
    return int(matched[1])


def check_staged_name(kind: StagingKind, name: str) -> None:
    match kind:
        case StagingKind.FILES:
            layer_index(name)
        case StagingKind.ROWS:
            if name != ROWS_NAME:
                raise InvalidRequest(f"rows are staged as {ROWS_NAME!r}, not {name[:80]!r}")


def file_checksum(disk: Disk, path: str, size_bytes: int | None = None) -> int:
    """CRC-32 of a file, or of its first bytes. Blocks; for a worker thread."""
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
            raise Corruption(f"{file.path} was truncated while it was read")
        checksum = crc32(piece, checksum)
        offset += len(piece)
    return checksum


@dataclass(slots=True, eq=False, kw_only=True)
class _OpenPut:
    stream: IncomingPut
    staged: StagedTransfer
    file: File
    writing: asyncio.Lock = field(default_factory=asyncio.Lock)
    is_taken: bool = False
    """Taken over by another stream. The file is closed once no write is running."""


_Key = tuple[TransferId, AttemptId, str]


class OpenPuts:
    def __init__(self, context: TransferContext, staging: Staging) -> None:
        self._context = context
        self._disk = context.disk
        self._staging = staging
        self._open: dict[_Key, _OpenPut] = {}

    async def open(self, staged: StagedTransfer, put: FlightPut) -> IncomingPut:
        """Runs under a guard."""
        target = staged.target
        check_staged_name(target.kind, put.name)
        if put.size_bytes < 0 or put.offset < 0 or (target.kind is StagingKind.FILES and put.offset > put.size_bytes):
            raise InvalidRequest(f"a put of {put.size_bytes} bytes from {put.offset} on is invalid")
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
                    f"{put.name} of attempt {put.attempt} has {received} bytes here; the sender continues "
                    f"at {put.offset} of {put.size_bytes}",
                    advice="start a new attempt",
                )
            self._context.check_space(max(0, put.size_bytes - received))
            # Another stream may have opened the same file, or a seal may have started, during the awaits above.
            staged.state = staged.state.put(put.attempt, self._attempts_max(target.kind))
        except BaseException:
            file.close()
            raise
        self._take_away(key)
        stream = IncomingPut(
            session=staged.session,
            transfer=staged.transfer,
            attempt=put.attempt,
            name=put.name,
            kind=target.kind,
            size_bytes=put.size_bytes,
            received_bytes=received,
            checksum=checksum,
        )
        self._open[key] = _OpenPut(stream=stream, staged=staged, file=file)
        return stream

    def _attempts_max(self, kind: StagingKind) -> int:
        limits = self._context.limits
        return limits.runs_max if kind is StagingKind.ROWS else limits.attempts_max

    def _file(self, staged: StagedTransfer, put: FlightPut) -> tuple[File, bool]:
        """And whether it is new."""
        folder = staged.attempt_folder(put.attempt)
        path = f"{folder}/{put.name}"
        self._disk.make_folder(path.rpartition("/")[0])
        try:
            return self._disk.create(path), True
        except FileExistsError:
            return self._disk.open(path), False

    async def append(self, stream: IncomingPut, data: bytes | memoryview) -> None:
        """Runs under a guard. Raises `Stale` where another stream has taken over the file."""
        opened = self._opened(stream)
        staged = opened.staged
        staged.state = staged.state.put(stream.attempt, self._attempts_max(stream.kind))
        end = stream.received_bytes + len(data)
        if stream.kind is StagingKind.FILES and end > stream.size_bytes:
            raise InvalidRequest(f"{stream.name} was announced with {stream.size_bytes} bytes, and {end} arrived")
        try:
            self._context.check_space(len(data))
            checksum = await self._write(opened, data)
        except DiskFull:
            await self._drop(staged, stream.attempt)
            raise
        stream.received_bytes, stream.checksum = end, checksum
        staged.received[stream.attempt] = staged.received.get(stream.attempt, 0) + len(data)

    async def _write(self, opened: _OpenPut, data: bytes | memoryview) -> int:
        try:
            async with opened.writing:
                checksum = await self._disk.run(partial(_written, opened.file, opened.stream, memoryview(data)))
        finally:
            if opened.is_taken:
                opened.file.close()
        self._opened(opened.stream)
        return checksum

    def finish(self, stream: IncomingPut) -> PutAnswer:
        self._opened(stream)
        if stream.kind is StagingKind.FILES and stream.received_bytes != stream.size_bytes:
            raise Refused(
                f"{stream.name} has {stream.received_bytes} bytes of the {stream.size_bytes} that were announced",
                advice="send the rest",
            )
        return PutAnswer(stream.received_bytes, stream.checksum)

    def close(self, stream: IncomingPut) -> None:
        key = (stream.transfer, stream.attempt, stream.name)
        opened = self._open.get(key)
        if opened is not None and opened.stream is stream:
            self._take_away(key)

    def close_transfer(self, transfer: TransferId) -> None:
        """Closes their files, so that the seal does not find a writer that has ended."""
        for key in [key for key in self._open if key[0] == transfer]:
            self._take_away(key)

    async def _drop(self, staged: StagedTransfer, attempt: AttemptId) -> None:
        """Without space the attempt cannot be finished, and others may need the space it holds."""
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
        """Waits for the write of the previous stream, so that its bytes are counted as received."""
        before = self._open.get(key)
        self._take_away(key)
        if before is not None:
            async with before.writing:
                pass

    def _opened(self, stream: IncomingPut) -> _OpenPut:
        opened = self._open.get((stream.transfer, stream.attempt, stream.name))
        if opened is None or opened.stream is not stream:
            raise Stale(
                f"{stream.name} of attempt {stream.attempt} is no longer written by this stream",
                advice="another stream has taken it over, or the transfer has ended",
            )
        return opened


def _received(file: File, put: FlightPut, kind: StagingKind) -> int:
    """Where the sender continues; what lies behind that is cut off."""
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


def _written(file: File, stream: IncomingPut, data: memoryview) -> int:
    """In chunks: for a write of megabytes the kernel needs as much contiguous memory, which costs several times the
    copy on a machine that has to free it first."""
    checksum = stream.checksum
    for start in range(0, len(data), WRITE_BYTES):
        piece = bytes(data[start : start + WRITE_BYTES])
        file.write(stream.received_bytes + start, piece)
        checksum = crc32(piece, checksum)
    return checksum
