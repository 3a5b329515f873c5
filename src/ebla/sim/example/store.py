"""Where the example register keeps what it holds: records appended to a journal, the last whole one counts."""

import zlib
from struct import Struct

import msgspec

from ebla.ports.disk import Disk, File
from ebla.sim.example.messages import RegisterState

FOLDER = "/data/register"
JOURNAL = f"{FOLDER}/journal"
FRESH = f"{FOLDER}/journal.new"
RECORDS_MAX = 40

_HEAD = Struct("<II")
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(RegisterState).decode


class RegisterStore:
    """Made by `open_register_store`. Raises `DiskFull` or `OSError` where the device refuses: then the process must
    end."""

    def __init__(self, disk: Disk, journal: File, held: RegisterState) -> None:
        self.held = held
        self._disk = disk
        self._journal = journal
        self._records = 1

    async def save(self, held: RegisterState) -> None:
        """Returns once it is durable."""
        self._journal.append(record_of(held))
        await self._journal.sync()
        self._records += 1
        self.held = held
        if self._records >= RECORDS_MAX:
            self._journal.close()
            self._journal = await rewrite(self._disk, held)
            self._records = 1


async def open_register_store(disk: Disk) -> RegisterStore:
    """Reads what the last life left, and writes it anew.

    The journal is not gone on with, since what can be read of it need not be durable: after a failed sync, a killed
    process finds its last record in the page cache, and a later sync would say nothing about it.
    """
    disk.make_folder(FOLDER)
    await disk.sync_folder("/data")
    held = last_record(_content(disk)) or RegisterState()
    return RegisterStore(disk, await rewrite(disk, held), held)


async def rewrite(disk: Disk, held: RegisterState) -> File:
    """Replaces the journal by one that holds a single record. A crash leaves the old one or the new one."""
    if disk.exists(FRESH):
        disk.unlink(FRESH)
    fresh = disk.create(FRESH)
    fresh.append(record_of(held))
    await fresh.sync()
    fresh.close()
    disk.rename(FRESH, JOURNAL)
    await disk.sync_folder(FOLDER)
    return disk.open(JOURNAL)


def record_of(held: RegisterState) -> bytes:
    body = _encode(held)
    return _HEAD.pack(len(body), zlib.crc32(body)) + body


def last_record(content: bytes) -> RegisterState | None:
    """The last whole record before the first torn one. Nobody was told of what follows: its sync had not returned."""
    held: RegisterState | None = None
    offset = 0
    while offset + _HEAD.size <= len(content):
        length, checksum = _HEAD.unpack_from(content, offset)
        body = content[offset + _HEAD.size : offset + _HEAD.size + length]
        if len(body) < length or zlib.crc32(body) != checksum or not body:
            break
        held = _decode(body)
        offset += _HEAD.size + length
    return held


def _content(disk: Disk) -> bytes:
    if not disk.exists(JOURNAL):
        return b""
    journal = disk.open(JOURNAL)
    content = journal.read(0, journal.size())
    journal.close()
    return content
