"""Whole files, replaced at once: after a crash a reader finds the old content or the new, checked, and nothing else.

The order is: write beside the place, sync the content, rename over it, sync the folder. Without the first sync a power
cut may keep the name and lose the bytes; without the second it may bring the old file back after the caller was told.

The content is cut into pieces with a checksum each, so that a large file is written and read in short steps off the
loop, and a damaged one is noticed before its end is reached. The last piece is empty and carries the number of
those before it: a file that ends early is told from one that is complete.
"""

import itertools
import struct
import zlib
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from functools import partial

from ebla.model.errors import Corruption, Refused
from ebla.ports.disk import Disk, File

FILE_FORMAT = 1
FILE_CHUNK_BYTES = 1 << 20
CHUNKS_PER_WRITE = 4
"""Few: the content may be made while it is written, and that on the loop."""
TEMPORARY_SUFFIX = ".new"

_MAGIC = b"EBLAFILE"
_HEADER = struct.Struct("<8sHxxI")  # magic, format, spare, checksum of what stands before it
_HEADER_CHECKED_BYTES = 12
_PIECE = struct.Struct("<III")  # length, number of the piece, checksum of both and of the content
_PIECE_CHECKED = struct.Struct("<II")
_BLOCK_BYTES = 4 * (FILE_CHUNK_BYTES + _PIECE.size)
"""Of one read; the longest piece fits into it."""


async def replace_file(disk: Disk, path: str, content: bytes | Iterable[bytes]) -> None:
    """Durable on return. One replacement of a path at a time. Raises `DiskFull`, and the old content stands."""
    replacement = AtomicFileWriter(disk, path)
    try:
        pieces = _cut(content)
        while several := list(itertools.islice(pieces, CHUNKS_PER_WRITE)):
            await replacement.append(several)
        await replacement.place()
    except BaseException:
        replacement.discard()
        raise


def write_unsynced_file(disk: Disk, path: str, content: bytes) -> None:
    """A new file for the same readers, in one step. Blocks. It is not durable, and a crash may leave it damaged, which
    is noticed: for what nobody asks for after one."""
    file = disk.create(path)
    try:
        start = _header()
        pieces = list(_cut(content))
        framed = [part for number, piece in enumerate(pieces) for part in (_piece_header(number, piece), piece)]
        file.write(0, b"".join((start, *framed, _piece_header(len(pieces), b""))))
    finally:
        file.close()


def _header() -> bytes:
    start = _HEADER.pack(_MAGIC, FILE_FORMAT, 0)[:_HEADER_CHECKED_BYTES]
    return start + struct.pack("<I", zlib.crc32(start))


class AtomicFileWriter:
    """A file in the making beside the place it is for: `append` in steps, then `place`; `discard` at any time before.
    Replacements of one path at once need names of their own (`tag`)."""

    def __init__(self, disk: Disk, path: str, tag: str = "") -> None:
        self._disk = disk
        self._path = path
        self._temporary = path + tag + TEMPORARY_SUFFIX
        self._pieces = 0
        discard_temporary(disk, path + tag)
        self._file = disk.create(self._temporary)
        self._size = 0
        try:
            self._write(_header())
        except BaseException:
            self.discard()
            raise

    async def append(self, pieces: Sequence[bytes]) -> None:
        """Of at most `FILE_CHUNK_BYTES` each, and none empty. Written off the loop, not yet durable. Raises
        `DiskFull`, and then it can only be discarded."""
        assert all(0 < len(piece) <= FILE_CHUNK_BYTES for piece in pieces)
        framed: list[bytes] = []
        for piece in pieces:
            framed += (_piece_header(self._pieces, piece), piece)
            self._pieces += 1
        # One call in the thread: with each return from the system it waits for the interpreter, which a busy loop gives
        # away every few milliseconds only.
        await self._disk.run(partial(self._write, b"".join(framed)))

    def _write(self, data: bytes) -> None:
        self._file.write(self._size, data)
        self._size += len(data)

    async def sync(self) -> None:
        """What was appended so far, so that little is left for the end."""
        await self._file.sync()

    async def place(self) -> None:
        """Durable on return, in its place."""
        self._write(_piece_header(self._pieces, b""))
        await self._file.sync()
        self._file.close()
        self._disk.rename(self._temporary, self._path)
        await self._disk.sync_folder(parent_folder(self._path))

    def discard(self) -> None:
        """Nothing of it is left, unless it is in its place already."""
        self._file.close()
        if self._disk.exists(self._temporary):
            self._disk.unlink(self._temporary)


async def read_checked_file(disk: Disk, path: str) -> bytes:
    """The whole content. Raises `FileNotFoundError`, `Corruption`, or `Refused` for a newer format."""
    return b"".join([piece async for piece in read_checked_chunks(disk, path)])


async def read_checked_chunks(disk: Disk, path: str) -> AsyncGenerator[bytes, None]:
    """The content piece by piece, each checked before it is given out; only the end proves that none is missing."""
    file = disk.open(path)
    try:
        await disk.run(partial(_check_header, file))
        offset = _HEADER.size
        number = 0
        ended = False
        while not ended:
            for piece in await disk.run(partial(_read_pieces, file, offset, number)):
                ended = not piece
                if piece:
                    yield piece
                    offset += _PIECE.size + len(piece)
                    number += 1
        if file.size() != offset + _PIECE.size:
            raise _damaged(path, offset + _PIECE.size, "bytes follow the end of the content")
    finally:
        file.close()


def discard_temporary(disk: Disk, path: str) -> None:
    """What a replacement that died left beside the path."""
    if disk.exists(path + TEMPORARY_SUFFIX):
        disk.unlink(path + TEMPORARY_SUFFIX)


def parent_folder(path: str) -> str:
    return path.rpartition("/")[0] or "/"


def _cut(content: bytes | Iterable[bytes]) -> Iterator[bytes]:
    for chunk in (content,) if isinstance(content, bytes) else content:
        for start in range(0, len(chunk), FILE_CHUNK_BYTES):
            yield chunk[start : start + FILE_CHUNK_BYTES]


def _piece_header(number: int, piece: bytes) -> bytes:
    checksum = zlib.crc32(piece, zlib.crc32(_PIECE_CHECKED.pack(len(piece), number)))
    return _PIECE.pack(len(piece), number, checksum)


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


def _read_pieces(file: File, offset: int, number: int) -> list[bytes]:
    """Those that one read brings whole, at least one, up to the end, which is an empty one. Many at once: on a busy
    machine the way to a thread and back takes longer than to read one."""
    block = memoryview(file.read(offset, _BLOCK_BYTES))
    pieces: list[bytes] = []
    start = 0
    while not pieces or (pieces[-1] and _holds_piece(block[start:])):
        pieces.append(_checked_piece(file.path, block[start:], offset + start, number + len(pieces)))
        start += _PIECE.size + len(pieces[-1])
    return pieces


def _holds_piece(block: memoryview) -> bool:
    return len(block) >= _PIECE.size and len(block) >= _PIECE.size + _PIECE.unpack_from(block)[0]


def _checked_piece(path: str, block: memoryview, offset: int, number: int) -> bytes:
    if len(block) < _PIECE.size:
        raise _damaged(path, offset, f"it ends before its piece {number}")
    length, found_number, checksum = _PIECE.unpack_from(block)
    piece = block[_PIECE.size : _PIECE.size + min(length, FILE_CHUNK_BYTES)]
    if checksum != zlib.crc32(piece, zlib.crc32(_PIECE_CHECKED.pack(length, found_number))) or len(piece) != length:
        raise _damaged(path, offset, f"piece {number} fails its checksum")
    if found_number != number:
        raise _damaged(path, offset, f"piece {found_number} stands where piece {number} belongs")
    return bytes(piece)


def _damaged(path: str, offset: int, what: str) -> Corruption:
    return Corruption(
        f"{path} is damaged at offset {offset}: {what}",
        advice="it is never written in place, so the device or somebody else changed it: check the device, keep a copy "
        "of the file, and restore it from a backup or replace this node",
    )
