"""Whole files, replaced atomically: after a crash a reader finds the old content or the new one, checked, nothing else.

The order is: write a temporary file, sync it, rename it over the old one, sync the folder. Without the first sync a
power failure may keep the name and lose the bytes. Without the second it may bring the old file back after the caller
was answered.

The content is cut into chunks with a checksum each, so that a large file is written and read in short steps off the
loop, and damage is noticed before the end is reached. The last chunk is empty and carries the number of chunks before
it, so that a truncated file is recognised.
"""

import itertools
import struct
import zlib
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from functools import partial

from ebla.model.advice import replace_node_advice
from ebla.model.errors import Corruption, Refused
from ebla.ports.disk import Disk, File

FILE_FORMAT = 1
FILE_CHUNK_BYTES = 1 << 20
CHUNKS_PER_WRITE = 4
"""Few: the content may be produced while it is written, on the loop."""
TEMPORARY_SUFFIX = ".new"

_MAGIC = b"EBLAFILE"
_HEADER = struct.Struct("<8sHxxI")  # magic, format, spare, checksum of what stands before it
_HEADER_CHECKED_BYTES = 12
_CHUNK = struct.Struct("<III")  # length, number of the chunk, checksum of both and of the content
_CHUNK_CHECKED = struct.Struct("<II")
_BLOCK_BYTES = 4 * (FILE_CHUNK_BYTES + _CHUNK.size)
"""Per read; the longest chunk fits into it."""


async def replace_file(disk: Disk, path: str, content: bytes | Iterable[bytes]) -> None:
    """Durable on return. One replacement of a path at a time. Raises `DiskFull`, and the old content stays."""
    replacement = AtomicFileWriter(disk, path)
    try:
        chunks = _cut(content)
        while several := list(itertools.islice(chunks, CHUNKS_PER_WRITE)):
            await replacement.append(several)
        await replacement.place()
    except BaseException:
        replacement.discard()
        raise


def write_unsynced_file(disk: Disk, path: str, content: bytes) -> None:
    """A new file in the same format, in one blocking step. It is not durable, and a crash may leave it damaged, which
    readers notice: for files that are not needed after a crash."""
    file = disk.create(path)
    try:
        start = _header()
        chunks = list(_cut(content))
        framed = [part for number, chunk in enumerate(chunks) for part in (_chunk_header(number, chunk), chunk)]
        file.write(0, b"".join((start, *framed, _chunk_header(len(chunks), b""))))
    finally:
        file.close()


def _header() -> bytes:
    start = _HEADER.pack(_MAGIC, FILE_FORMAT, 0)[:_HEADER_CHECKED_BYTES]
    return start + struct.pack("<I", zlib.crc32(start))


class AtomicFileWriter:
    """Writes a temporary file beside its target: `append` in steps, then `place`; `discard` at any time before.
    Several writers of one path at once need different names (`tag`)."""

    def __init__(self, disk: Disk, path: str, tag: str = "") -> None:
        self._disk = disk
        self._path = path
        self._temporary = path + tag + TEMPORARY_SUFFIX
        self._chunks = 0
        discard_temporary(disk, path + tag)
        self._file = disk.create(self._temporary)
        self._size = 0
        try:
            self._write(_header())
        except BaseException:
            self.discard()
            raise

    async def append(self, chunks: Sequence[bytes]) -> None:
        """At most `FILE_CHUNK_BYTES` each, none empty. Written off the loop, not yet durable. Raises `DiskFull`, and
        then the file can only be discarded."""
        assert all(0 < len(chunk) <= FILE_CHUNK_BYTES for chunk in chunks)
        framed: list[bytes] = []
        for chunk in chunks:
            framed += (_chunk_header(self._chunks, chunk), chunk)
            self._chunks += 1
        # One call in the thread: after each system call it waits for the interpreter lock, which a busy loop releases
        # only every few milliseconds.
        await self._disk.run(partial(self._write, b"".join(framed)))

    def _write(self, data: bytes) -> None:
        self._file.write(self._size, data)
        self._size += len(data)

    async def sync(self) -> None:
        """Syncs what was appended so far, so that little is left for the end."""
        await self._file.sync()

    async def place(self) -> None:
        """Moves the file to its target. Durable on return."""
        self._write(_chunk_header(self._chunks, b""))
        await self._file.sync()
        self._file.close()
        self._disk.rename(self._temporary, self._path)
        await self._disk.sync_folder(parent_folder(self._path))

    def discard(self) -> None:
        """Removes the temporary file, unless it was placed."""
        self._file.close()
        if self._disk.exists(self._temporary):
            self._disk.unlink(self._temporary)


async def read_checked_file(disk: Disk, path: str) -> bytes:
    """The whole content. Raises `FileNotFoundError`, `Corruption`, or `Refused` for a newer format."""
    # Not by the generator below: a read that was started eagerly may be closed while it waits for the disk, and CPython
    # then leaves an async generator behind that cannot be closed.
    reader = _CheckedReader(disk, path)
    try:
        chunks: list[bytes] = []
        while not reader.has_ended:
            chunks += await reader.read()
        return b"".join(chunks)
    finally:
        reader.close()


async def read_checked_chunks(disk: Disk, path: str) -> AsyncGenerator[bytes, None]:
    """The content chunk by chunk, each checked before it is returned; only the end proves that none is missing."""
    reader = _CheckedReader(disk, path)
    try:
        while not reader.has_ended:
            for chunk in await reader.read():
                yield chunk
    finally:
        reader.close()


class _CheckedReader:
    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self._path = path
        self._file = disk.open(path)
        self._offset = 0
        self._number = 0
        self.has_ended = False

    async def read(self) -> list[bytes]:
        """The next chunks, checked."""
        if not self._offset:
            await self._disk.run(partial(_check_header, self._file))
            self._offset = _HEADER.size
        found = await self._disk.run(partial(_read_chunks, self._file, self._offset, self._number))
        chunks = [chunk for chunk in found if chunk]
        self._offset += sum(_CHUNK.size + len(chunk) for chunk in chunks)
        self._number += len(chunks)
        self.has_ended = len(chunks) < len(found)
        if self.has_ended and self._file.size() != self._offset + _CHUNK.size:
            raise _damaged(self._path, self._offset + _CHUNK.size, "bytes follow the end of the content")
        return chunks

    def close(self) -> None:
        self._file.close()


def discard_temporary(disk: Disk, path: str) -> None:
    """Removes what an interrupted replacement left beside the path."""
    if disk.exists(path + TEMPORARY_SUFFIX):
        disk.unlink(path + TEMPORARY_SUFFIX)


def parent_folder(path: str) -> str:
    return path.rpartition("/")[0] or "/"


def _cut(content: bytes | Iterable[bytes]) -> Iterator[bytes]:
    for part in (content,) if isinstance(content, bytes) else content:
        for start in range(0, len(part), FILE_CHUNK_BYTES):
            yield part[start : start + FILE_CHUNK_BYTES]


def _chunk_header(number: int, chunk: bytes) -> bytes:
    checksum = zlib.crc32(chunk, zlib.crc32(_CHUNK_CHECKED.pack(len(chunk), number)))
    return _CHUNK.pack(len(chunk), number, checksum)


def _check_header(file: File) -> None:
    header = file.read(0, _HEADER.size)
    if len(header) < _HEADER.size:
        raise _damaged(file.path, 0, "it ends inside its header")
    magic, file_format, checksum = _HEADER.unpack(header)
    if magic != _MAGIC or checksum != zlib.crc32(header[:_HEADER_CHECKED_BYTES]):
        raise _damaged(file.path, 0, "its header is not one of ours")
    if file_format > FILE_FORMAT:
        raise Refused(
            f"{file.path} has format {file_format}, this program knows formats up to {FILE_FORMAT}",
            advice="run the version that wrote it, or a newer one",
        )


def _read_chunks(file: File, offset: int, number: int) -> list[bytes]:
    """The complete chunks of one read, at least one, up to the end, which is an empty one. Many at once: on a busy
    machine the switch to a thread and back takes longer than reading one."""
    block = memoryview(file.read(offset, _BLOCK_BYTES))
    chunks: list[bytes] = []
    start = 0
    while not chunks or (chunks[-1] and _holds_chunk(block[start:])):
        chunks.append(_checked_chunk(file.path, block[start:], offset + start, number + len(chunks)))
        start += _CHUNK.size + len(chunks[-1])
    return chunks


def _holds_chunk(block: memoryview) -> bool:
    return len(block) >= _CHUNK.size and len(block) >= _CHUNK.size + _CHUNK.unpack_from(block)[0]


def _checked_chunk(path: str, block: memoryview, offset: int, number: int) -> bytes:
    if len(block) < _CHUNK.size:
        raise _damaged(path, offset, f"it ends before its chunk {number}")
    length, found_number, checksum = _CHUNK.unpack_from(block)
    chunk = block[_CHUNK.size : _CHUNK.size + min(length, FILE_CHUNK_BYTES)]
    if checksum != zlib.crc32(chunk, zlib.crc32(_CHUNK_CHECKED.pack(length, found_number))) or len(chunk) != length:
        raise _damaged(path, offset, f"chunk {number} fails its checksum")
    if found_number != number:
        raise _damaged(path, offset, f"it has chunk {found_number} where chunk {number} belongs")
    return bytes(chunk)


def _damaged(path: str, offset: int, what: str) -> Corruption:
    return Corruption(
        f"{path} is damaged at offset {offset}: {what}",
        advice="it is never written in place, so the device or another program changed it: check the device and keep a "
        f"copy of the file, then {replace_node_advice()}",
    )
