"""What transfers may do to replicas, compared with what they did, in the step in which it happened.

INV-XFER-1  nothing becomes part of a stack under a session whose close was answered, nor is a guard of it held
INV-XFER-2  what becomes part of a stack is exactly the source's checkpoint: every layer, every file, every row
INV-XFER-3  the layers of one transfer become part of a stack in one step, and once
INV-XFER-4  files that became part of a stack never change
INV-XFER-5  nothing is left of a closed session: no staging, no checkpoint
"""

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ebla.bulk.bulk_transfers import KEY_NAME
from ebla.model.identity import CheckpointId, HostId, Replica, SessionId, TransferId
from ebla.model.transfers import FileMove
from ebla.sim.disk import ProcessDisk
from ebla.storage.codec.staging_format import checkpoints_folder, staging_folder
from ebla.storage.layers.layer import Item
from ebla.storage.manifest import Incarnation, LayerEntry, LayerId

FileChecksums = Mapping[str, int]
"""A layer's files: the checksum of each by its name."""


@dataclass(frozen=True, slots=True)
class SessionClose:
    at: float
    down: tuple[HostId, ...]
    """The close did not wait for these: what had begun there may complete."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdoptedLayers:
    """Base layers of one origin that a shard's stack has from this step on."""

    own: Replica
    incarnation: Incarnation
    session: SessionId
    transfer: TransferId
    layers: Sequence[tuple[LayerEntry, str]]
    """Each with its folder."""


@dataclass(frozen=True, slots=True)
class _Kept:
    """A file that is part of a stack, under any name."""

    path: str
    content: Callable[[], bytes]
    checksum: int


@dataclass(slots=True, kw_only=True)
class TransfersLedger:
    fail: Callable[[str], None]
    now: Callable[[], float]
    closes: int = 0
    adoptions: int = 0
    merged_rows: int = 0
    copied_files: int = 0
    _closed: dict[SessionId, SessionClose] = field(default_factory=dict)
    _closed_on: dict[tuple[HostId, SessionId], None] = field(default_factory=dict)
    _layers: dict[TransferId, Sequence[FileChecksums]] = field(default_factory=dict)
    _rows: dict[TransferId, dict[Sequence[CheckpointId], dict[bytes, bytes]]] = field(default_factory=dict)
    """By what they were read from: a repeat of a transfer takes new checkpoints."""
    _known: dict[tuple[Incarnation, TransferId], tuple[LayerId, ...]] = field(default_factory=dict)
    _kept: dict[tuple[HostId, int], _Kept] = field(default_factory=dict)

    # -- sessions ----------------------------------------------------------------------------------------------------

    def closed(self, session: SessionId, down: Sequence[HostId]) -> None:
        """A close was answered. The first answer is the promise; a later one may name fewer as down."""
        self.closes += 1
        known = self._closed.get(session)
        if known is None or set(known.down) > set(down):
            self._closed[session] = SessionClose(self.now(), tuple(down))

    def closed_on(self, host: HostId, session: SessionId) -> None:
        """This host has acknowledged a version that does not list the session any more."""
        self._closed_on[(host, session)] = None

    def is_closed(self, host: HostId, session: SessionId) -> bool:
        closed = self._closed.get(session)
        return (host, session) in self._closed_on or (closed is not None and host not in closed.down)

    def held(self, host: HostId, who: str, sessions: Sequence[SessionId]) -> None:
        """Guards of sessions that are no longer listed."""
        for session in sessions:
            if self.is_closed(host, session):
                self.fail(f"INV-XFER-1: {who} holds a guard of session {session}, whose close was answered")

    def effect(self, own: Replica, session: SessionId, began: float) -> None:
        """Something becomes part of a stack. `began`: when it was requested."""
        closed = self._closed.get(session)
        if (own.host, session) in self._closed_on:
            self.fail(f"INV-XFER-1: {own} adopts data of session {session}, whose end its node has acknowledged")
        if closed is not None and (own.host not in closed.down or began > closed.at):
            self.fail(f"INV-XFER-1: {own} adopts data of session {session}, whose close was answered")

    # -- what is on its way ------------------------------------------------------------------------------------------

    def sends_files(self, move: FileMove, folder: str, disk: ProcessDisk) -> None:
        """Before any attempt. `folder` is the checkpoint's. A file that is not there cannot be sent by any attempt."""
        part = move.source.parts[move.part]
        paths = [[(file.name, f"{folder}/{layer.folder}/{file.name}") for file in layer.files] for layer in part.layers]
        if all(disk.exists(path) for layer in paths for _, path in layer):
            found = [{name: _checksum(disk, path) for name, path in layer} for layer in paths]
            self._layers.setdefault(move.target.transfer, found)

    def sends_rows(
        self, transfer: TransferId, items: Sequence[Item], checkpoints: tuple[CheckpointId, ...] = ()
    ) -> None:
        """By one attempt. All attempts must read the same rows: checkpoints do not change."""
        known = self._rows.setdefault(transfer, {}).setdefault(checkpoints, dict(items))
        if known != dict(items):
            self.fail(f"INV-XFER-2: two attempts at transfer {transfer} read different rows")

    def has_rows(self, transfer: TransferId) -> bool:
        return transfer in self._rows

    # -- what has arrived --------------------------------------------------------------------------------------------

    def appeared(self, found: AdoptedLayers, disk: ProcessDisk) -> None:
        what = f"transfer {found.transfer} on {found.own}"
        ids = tuple(entry.id for entry, _ in found.layers)
        key = (found.incarnation, found.transfer)
        known = self._known.setdefault(key, ids)
        if known != ids:
            self.fail(f"INV-XFER-3: {what} becomes layers {ids}, after {known}")
            return
        expected = self._layers.get(found.transfer)
        folders = [folder for _, folder in found.layers]
        arrived = [{name: _checksum(disk, f"{one}/{name}") for name in disk.list_folder(one)} for one in folders]
        if expected is not None and arrived != expected:
            self.fail(f"INV-XFER-2: {what} was {expected} at its source and is {arrived}")
        elif expected is None and found.transfer not in self._rows:
            self.fail(f"INV-XFER-2: {what} becomes layers that were never sent")
        self.adoptions += 1
        for folder in folders:
            for name in disk.list_folder(folder):
                self._keep(found.own.host, disk, f"{folder}/{name}")

    def merged(self, own: Replica, transfer: TransferId, items: Sequence[Item]) -> None:
        """All rows of a transfer, merged by one adoption."""
        readings = list(self._rows.get(transfer, {}).values())
        self.merged_rows += len(items)
        if dict(items) not in readings:
            expected = readings[-1] if readings else {}
            lacking = [key.hex() for key in expected if key not in dict(items)]
            self.fail(
                f"INV-XFER-2: transfer {transfer} on {own} brings {len(items)} rows, and {len(expected)} were read; "
                f"lacking: {lacking[:3]}"
            )

    def _keep(self, host: HostId, disk: ProcessDisk, path: str) -> None:
        content = disk.watch(path)
        self._kept.setdefault((host, disk.inode(path)), _Kept(path, content, zlib.crc32(content())))

    def check_files(self) -> None:
        """INV-XFER-4."""
        for kept in self._kept.values():
            if zlib.crc32(kept.content()) != kept.checksum:
                self.fail(f"INV-XFER-4: {kept.path} has changed since it became part of a stack")


def find_leftovers(disk: ProcessDisk, folder: str) -> str | None:
    """INV-XFER-5 for a node's folder, once every session is closed."""
    for path in (staging_folder(folder), checkpoints_folder(folder)):
        names = [name for name in (disk.list_folder(path) if disk.exists(path) else []) if name != KEY_NAME]
        if names:
            return f"INV-XFER-5: {path} still has {', '.join(names)}"
    return None


def _checksum(disk: ProcessDisk, path: str) -> int:
    return zlib.crc32(disk.watch(path)())
