"""The simulated disk of one machine: a page cache in front of what is durable, and faults in between.

A crash keeps synced data. Each unsynced write may survive, vanish or be torn. Names (create, rename, link, unlink) that
`sync_folder` did not make durable may be lost, in order or one by one: only the order that POSIX promises is kept.
"""

import asyncio
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from ebla.model.errors import DiskFull
from ebla.sim.incarnation import ProcessIncarnation
from ebla.sim.rng import SimRng
from ebla.sim.trace import RunTrace

T = TypeVar("T")

SECTOR_BYTES = 512
DATA_FOLDER = "data"
"""Exists durably from the start. A process must create everything else."""


@dataclass(frozen=True, slots=True)
class _Written:
    """A write that is not yet durable. Without data: a truncation to `offset`."""

    number: int
    offset: int
    data: bytes | None


@dataclass(slots=True, eq=False, kw_only=True)
class _Content:
    """A file apart from its names. `durable` is what a crash leaves, before the fate of each unsynced write is
    drawn."""

    cached: bytearray = field(default_factory=bytearray)
    durable: bytearray = field(default_factory=bytearray)
    unsynced: list[_Written] = field(default_factory=list)
    reserved: int = 0
    written: int = 0
    inode: int = 0
    open_files: list["SimFile"] = field(default_factory=list)

    def is_open(self) -> bool:
        """By a live incarnation. The kernel closes the files of a process that died."""
        self.open_files = [one for one in self.open_files if one.is_open]
        return bool(self.open_files)

    def note(self, offset: int, data: bytes | None) -> None:
        self.written += 1
        self.unsynced.append(_Written(self.written, offset, data))
        _apply(self.cached, offset, data)

    def settle(self, number: int) -> None:
        """Writes up to `number` are durable."""
        for write in self.unsynced:
            if write.number <= number:
                _apply(self.durable, write.offset, write.data)
        self.unsynced = [write for write in self.unsynced if write.number > number]


@dataclass(slots=True, eq=False)
class _Folder:
    cached: dict[str, "_Node"] = field(default_factory=dict)
    durable: dict[str, "_Node"] = field(default_factory=dict)


_Node = _Content | _Folder
FolderCopy = _Folder


@dataclass(frozen=True, slots=True, eq=False)
class _Renaming:
    """A change of names that is not yet durable. A rename is one change: both names change or neither."""

    changes: tuple[tuple[_Folder, str, _Node | None], ...]

    def touches(self, folder: _Folder) -> bool:
        return any(changed is folder for changed, _, _ in self.changes)

    def settle(self) -> None:
        for folder, name, node in self.changes:
            _set_name(folder.durable, name, node)


@dataclass(frozen=True, slots=True, eq=False)
class DiskFault:
    """What one fault adds to a device while it lasts."""

    sync_ms: float = 0.0
    fail_sync: float = 0.0
    capacity_bytes: int | None = None


@dataclass(slots=True, kw_only=True)
class DiskBehaviour:
    """How the device behaves without faults. `SimDisk.heal` restores it."""

    sync_ms: float = 0.4
    sync_tail: float = 0.02
    sync_tail_ms: float = 20.0
    fail_sync: float = 0.0
    capacity_bytes: int | None = None


class SimDisk:
    """The device. Processes access it through `of(incarnation)`."""

    def __init__(self, rng: SimRng, narrative: RunTrace, owner: str) -> None:
        self.behaviour = DiskBehaviour()
        self._rng = rng
        self._narrative = narrative
        self._owner = owner
        self.root = _Folder()
        self._unsynced_names: list[_Renaming] = []
        self._strains: list[DiskFault] = []
        self._inodes = 0
        self.root.cached[DATA_FOLDER] = self.root.durable[DATA_FOLDER] = _Folder()

    def lay_out(self, name: str) -> None:
        """Creates a folder below `/data` that exists durably from the start."""
        data = self.root.durable[DATA_FOLDER]
        assert isinstance(data, _Folder)
        data.cached[name] = data.durable[name] = _Folder()

    def copy_folder(self, path: str) -> "FolderCopy":
        """As an operator copies the folder of a stopped node."""
        return _copied(self._folder_at(path))

    def put_folder(self, path: str, copy: "FolderCopy | None") -> None:
        """Replaces a folder by a copy, durably. None: removes it."""
        parent, _, name = path.rpartition("/")
        folder, new = self._folder_at(parent), None if copy is None else _copied(copy)
        for names in (folder.cached, folder.durable):
            _set_name(names, name, new)

    def _folder_at(self, path: str) -> "_Folder":
        node: _Node = self.root
        for name in _parts(path):
            assert isinstance(node, _Folder), f"{path} is no folder"
            node = node.cached[name]
        assert isinstance(node, _Folder), f"{path} is no folder"
        return node

    def of(self, incarnation: ProcessIncarnation) -> "ProcessDisk":
        return ProcessDisk(self, incarnation)

    # -- faults --------------------------------------------------------------------------------------------------

    @contextmanager
    def inject(self, strain: DiskFault) -> Iterator[None]:
        """Several faults at once add up. Each ends independently."""
        self._strains.append(strain)
        try:
            yield
        finally:
            self._strains = [held for held in self._strains if held is not strain]

    def lose_power(self) -> None:
        """Only durable data stays, and a random part of the rest that had already reached the medium."""
        self._settle_names()
        for content in _contents(self.root, durable=True):
            _settle_content(content, self._rng)
        _forget_cache(self.root)

    def _settle_names(self) -> None:
        names, self._unsynced_names = self._unsynced_names, []
        kept = self._rng.randrange(0, len(names) + 1)
        in_order = self._rng.happens(0.5)
        for index, renaming in enumerate(names):
            if index < kept if in_order else self._rng.happens(0.5):
                renaming.settle()

    def fill(self, left_bytes: int = 0) -> None:
        """From now on only `left_bytes` more bytes fit."""
        self.behaviour.capacity_bytes = self.used_bytes() + left_bytes

    def rot(self, suffix: str = "") -> str | None:
        """Flips one bit of one durable file, whose path ends so, and returns where; None if there is no file."""
        found = [(path, content) for path, content in _walk(self.root, "") if content.durable]
        files = [(path, content) for path, content in found if path.endswith(suffix)]
        if not files:
            return None
        path, content = self._rng.choice(files)
        position = self._rng.randrange(0, len(content.durable))
        bit = 1 << self._rng.randrange(0, 8)
        content.durable[position] ^= bit
        if position < len(content.cached):
            content.cached[position] ^= bit
        return f"{path}@{position}"

    def heal(self) -> None:
        """Ends the faults of the device. Flipped bits and lost data stay as they are."""
        self.behaviour = DiskBehaviour()
        self._strains = []

    @property
    def sync_ms(self) -> float:
        return sum((strain.sync_ms for strain in self._strains), self.behaviour.sync_ms)

    @property
    def fail_sync(self) -> float:
        return sum((strain.fail_sync for strain in self._strains), self.behaviour.fail_sync)

    @property
    def capacity_bytes(self) -> int | None:
        limits = [self.behaviour.capacity_bytes, *(strain.capacity_bytes for strain in self._strains)]
        return min((limit for limit in limits if limit is not None), default=None)

    def used_bytes(self) -> int:
        return sum(max(len(content.cached), content.reserved) for content in _contents(self.root, durable=False))

    # -- used by ProcessDisk and SimFile -------------------------------------------------------------------------------

    def new_content(self) -> _Content:
        self._inodes += 1
        return _Content(inode=self._inodes)

    def admit(self, content: _Content, offset: int, data: bytes) -> None:
        """Writes. If the device is full, writes a part and raises."""
        grows = offset + len(data) - max(len(content.cached), content.reserved)
        capacity = self.capacity_bytes
        if capacity is None or grows <= 0 or self.used_bytes() + grows <= capacity:
            content.note(offset, data)
            return
        part = self._rng.randrange(0, len(data))
        if part:
            content.note(offset, data[:part])
        raise DiskFull(f"the disk of {self._owner} is full")

    def rename(self, *changes: tuple[_Folder, str, _Node | None]) -> None:
        for folder, name, node in changes:
            _set_name(folder.cached, name, node)
        self._unsynced_names.append(_Renaming(changes))

    async def sync_content(self, content: _Content, path: str) -> None:
        number = content.written
        await self._wait_for_device()
        if self._rng.happens(self.fail_sync):
            # As in real kernels: the pages count as clean from now on, and the next sync does not report them.
            content.unsynced = [write for write in content.unsynced if write.number > number]
            self._narrative.log(self._owner, f"a sync of {path} fails")
            raise OSError(5, f"sync of {path} failed")
        content.settle(number)
        self._narrative.synced(zlib.crc32(path.encode()), number)

    async def sync_names(self, folder: _Folder, path: str) -> None:
        due = [renaming for renaming in self._unsynced_names if renaming.touches(folder)]
        await self._wait_for_device()
        if self._rng.happens(self.fail_sync):
            self._narrative.log(self._owner, f"a sync of folder {path} fails")
            raise OSError(5, f"sync of folder {path} failed")
        # Not those that a faster sync of the folder has settled: that would undo later ones, which it has settled too.
        for renaming in [one for one in self._unsynced_names if one in due]:
            renaming.settle()
            self._unsynced_names.remove(renaming)

    async def _wait_for_device(self) -> None:
        ms = self.sync_ms * (0.5 + self._rng.random())
        if self._rng.happens(self.behaviour.sync_tail):
            ms += self._rng.exponential(self.behaviour.sync_tail_ms)
        await asyncio.sleep(ms / 1000.0)

    def draw_work_s(self) -> float:
        return self._rng.between(0.05, 5.0) / 1000.0


class SimFile:
    """`ports.disk.File`, open in one incarnation."""

    def __init__(self, disk: SimDisk, incarnation: ProcessIncarnation, path: str, content: _Content) -> None:
        self._disk = disk
        self._incarnation = incarnation
        self._path = path
        self._content = content
        self._open = True
        content.open_files.append(self)

    @property
    def path(self) -> str:
        return self._path

    @property
    def is_open(self) -> bool:
        return self._open and self._incarnation.alive

    def size(self) -> int:
        self._check()
        return len(self._content.cached)

    def read(self, offset: int, length: int) -> bytes:
        self._check()
        assert offset >= 0, "an offset counts from the start"
        assert length >= 0, "a length cannot be negative"
        return bytes(self._content.cached[offset : offset + length])

    def append(self, data: bytes) -> None:
        self._check()
        self._disk.admit(self._content, len(self._content.cached), bytes(data))

    def write(self, offset: int, data: bytes) -> None:
        self._check()
        assert offset >= 0, "an offset counts from the start"
        self._disk.admit(self._content, offset, bytes(data))

    def truncate(self, size: int) -> None:
        self._check()
        assert size >= 0, "a size cannot be negative"
        self._content.note(size, None)
        self._content.reserved = min(self._content.reserved, size)

    def preallocate(self, size: int) -> None:
        self._check()
        capacity = self._disk.capacity_bytes
        grows = size - max(len(self._content.cached), self._content.reserved)
        if capacity is not None and grows > 0 and self._disk.used_bytes() + grows > capacity:
            raise DiskFull(f"no room to reserve {size} bytes for {self._path}")
        self._content.reserved = max(self._content.reserved, size)

    def can_sync_now(self, more_bytes: int) -> bool:  # noqa: ARG002  # a simulated sync always takes time
        return False

    def sync_now(self) -> None:
        raise AssertionError("a simulated sync takes time")

    async def sync(self) -> None:
        self._check()
        await self._disk.sync_content(self._content, self._path)
        self._incarnation.check()

    def close(self) -> None:
        self._incarnation.check()
        self._open = False
        self._content.is_open()

    def _check(self) -> None:
        self._incarnation.check()
        assert self._open, f"{self._path} was closed"


class ProcessDisk:
    """`ports.disk.Disk` and `bulk.staging.Isolation` as one incarnation of a process sees them."""

    def __init__(self, disk: SimDisk, incarnation: ProcessIncarnation) -> None:
        self._disk = disk
        self._incarnation = incarnation

    def open(self, path: str) -> SimFile:
        return SimFile(self._disk, self._incarnation, path, self._file(path))

    def create(self, path: str) -> SimFile:
        folder, name = self._place(path)
        if name in folder.cached:
            raise FileExistsError(path)
        if self.free_bytes(path) <= 0:
            raise DiskFull(f"no room to create {path}")
        content = self._disk.new_content()
        self._disk.rename((folder, name, content))
        return SimFile(self._disk, self._incarnation, path, content)

    def rename(self, old: str, new: str) -> None:
        node = self._find(old)
        old_folder, old_name = self._place(old)
        new_folder, new_name = self._place(new)
        if (old_folder, old_name) != (new_folder, new_name):
            self._disk.rename((old_folder, old_name, None), (new_folder, new_name, node))

    def link(self, existing: str, new: str) -> None:
        node = self._find(existing)
        folder, name = self._place(new)
        if name in folder.cached:
            raise FileExistsError(new)
        self._disk.rename((folder, name, node))

    def unlink(self, path: str) -> None:
        if isinstance(self._find(path), _Folder):
            raise IsADirectoryError(path)
        folder, name = self._place(path)
        self._disk.rename((folder, name, None))

    def make_folder(self, path: str) -> None:
        self._incarnation.check()
        folder = self._disk.root
        for name in _parts(path):
            child = folder.cached.get(name)
            if child is None:
                child = _Folder()
                self._disk.rename((folder, name, child))
            if not isinstance(child, _Folder):
                raise FileExistsError(path)
            folder = child

    def remove_folder(self, path: str) -> None:
        if self.exists(path):
            folder, name = self._place(path)
            self._disk.rename((folder, name, None))

    def list_folder(self, path: str) -> list[str]:
        return sorted(self._folder(path).cached)

    def exists(self, path: str) -> bool:
        try:
            self._find(path)
        except FileNotFoundError:
            return False
        return True

    def inode(self, path: str) -> int:
        """The same for every link of a file."""
        return self._file(path).inode

    def watch(self, path: str) -> Callable[[], bytes]:
        """Returns a function that reads the bytes of this file at any later time, whatever happens to its names."""
        content = self._file(path)
        return lambda: bytes(content.cached)

    def size_bytes(self, path: str) -> int:
        return len(self._file(path).cached)

    def has_no_writer(self, path: str) -> bool:
        """Whether no process has the file open, under any of its names. Every open file of this disk is writable."""
        return not self._file(path).is_open()

    def free_bytes(self, path: str) -> int:  # noqa: ARG002  # one device for all paths
        self._incarnation.check()
        capacity = self._disk.capacity_bytes
        return (1 << 40) if capacity is None else max(0, capacity - self._disk.used_bytes())

    async def sync_folder(self, path: str) -> None:
        await self._disk.sync_names(self._folder(path), path)
        self._incarnation.check()

    async def run(self, work: Callable[[], T]) -> T:
        self._incarnation.check()
        await asyncio.sleep(self._disk.draw_work_s())
        self._incarnation.check()
        return work()

    def _find(self, path: str) -> _Node:
        self._incarnation.check()
        node: _Node | None = self._disk.root
        for name in _parts(path):
            node = node.cached.get(name) if isinstance(node, _Folder) else None
        if node is None:
            raise FileNotFoundError(2, "no such file or folder", path)
        return node

    def _file(self, path: str) -> _Content:
        node = self._find(path)
        if isinstance(node, _Folder):
            raise IsADirectoryError(path)
        return node

    def _folder(self, path: str) -> _Folder:
        node = self._find(path)
        if not isinstance(node, _Folder):
            raise NotADirectoryError(path)
        return node

    def _place(self, path: str) -> tuple[_Folder, str]:
        parent, _, name = path.rstrip("/").rpartition("/")
        assert name, f"{path} names no file"
        return self._folder(parent or "/"), name


def _parts(path: str) -> list[str]:
    assert path.startswith("/"), f"{path!r} is not absolute"
    return [part for part in path.split("/") if part]


def _apply(target: bytearray, offset: int, data: bytes | None) -> None:
    if len(target) < offset:
        target.extend(bytes(offset - len(target)))
    if data is None:
        del target[offset:]
    else:
        target[offset : offset + len(data)] = data


def _copied(folder: _Folder) -> _Folder:
    """What a reader of the folder sees, as durable files of its own."""
    copy = _Folder()
    for name, node in folder.cached.items():
        if isinstance(node, _Folder):
            made: _Node = _copied(node)
        else:
            made = _Content(cached=bytearray(node.cached), durable=bytearray(node.cached), inode=node.inode)
        copy.cached[name] = copy.durable[name] = made
    return copy


def _set_name(names: dict[str, _Node], name: str, node: _Node | None) -> None:
    if node is None:
        names.pop(name, None)
    else:
        names[name] = node


def _settle_content(content: _Content, rng: SimRng) -> None:
    """Draws the fate of each unsynced write. Sometimes all have the same fate: such runs find other bugs."""
    common = rng.weighted((None, 0.0, 1.0), (6, 3, 1))
    for write in content.unsynced:
        survives = rng.random() if common is None else common
        if survives >= 0.6:
            _apply(content.durable, write.offset, write.data)
        elif survives >= 0.3 and write.data is not None:
            _tear(content.durable, write.offset, write.data, rng)
    content.unsynced = []


def _tear(target: bytearray, offset: int, data: bytes, rng: SimRng) -> None:
    """A part of the write: its beginning, some of its sectors, or its whole length with the end never written."""
    kept = rng.randrange(0, len(data) + 1)
    match rng.randrange(0, 4):
        case 0:
            _apply(target, offset, data[:kept])
        case 1:
            _apply(target, offset, data[:kept])
            _apply(target, max(len(target), offset + len(data)), b"")
        case 2:  # blocks of another file, which some file systems expose in a file that grows
            garbage_from = max(kept, min(len(target) - offset, len(data)))
            _apply(target, offset, data[:kept])
            _apply(target, offset + garbage_from, rng.bytes(len(data) - garbage_from))
        case _:
            for start in range(0, len(data), SECTOR_BYTES):
                if rng.happens(0.5):
                    _apply(target, offset + start, data[start : start + SECTOR_BYTES])


def _walk(folder: _Folder, path: str) -> Iterator[tuple[str, _Content]]:
    for name in sorted(folder.durable):
        node = folder.durable[name]
        if isinstance(node, _Folder):
            yield from _walk(node, f"{path}/{name}")
        else:
            yield f"{path}/{name}", node


def _contents(folder: _Folder, *, durable: bool) -> Iterator[_Content]:
    """Each file once, even if it has several names."""
    seen: dict[int, _Content] = {}
    pending = [folder]
    while pending:
        names = pending[-1].durable if durable else pending[-1].cached
        pending.pop()
        for name in sorted(names):
            node = names[name]
            if isinstance(node, _Folder):
                pending.append(node)
            else:
                seen.setdefault(id(node), node)
    yield from seen.values()


def _forget_cache(folder: _Folder) -> None:
    folder.cached = dict(folder.durable)
    for node in folder.cached.values():
        if isinstance(node, _Folder):
            _forget_cache(node)
        else:
            node.cached = bytearray(node.durable)
            node.reserved = 0
