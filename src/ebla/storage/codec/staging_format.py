"""What stands in the staging of a node: its names, who it is for, and what a seal leaves.

    <data>/staging/<session>/<transfer>/target        for which life of which stack, written when it is opened
                                        <attempt>/    what a task has brought; counts for nothing
                                        sealed-…/     what counts; only the bulk process knows and writes it
                                        SEALED        names it, and comes last
    <data>/checkpoints/<checkpoint>/…                 stacks of this node by hard links, for others to read

The bulk process writes all of it and the shards read it: both hold to this file. Both files are replaced whole and
checked, so one that can be read is one that was written.
"""

from typing import TypeVar

import msgspec

from ebla.journal.checked_file import read_checked_file, replace_file
from ebla.model.errors import Corruption, Refused
from ebla.model.identity import AttemptId, SessionId, ShardNumber, TableId, TransferId
from ebla.model.token import TokenRange
from ebla.model.transfers import StagingKind
from ebla.ports.disk import Disk
from ebla.storage.manifest import Incarnation

STAGING_FORMAT = 1
SEALED_LAYERS_MAX = 64
"""Of one transfer. A stack is folded long before it has so many."""


class TargetFile(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """Which life of a stack takes what is staged beside it."""

    table: TableId
    shard: ShardNumber
    incarnation: Incarnation
    """Of the stack. One that was emptied, or left and came back since, has another."""
    range: TokenRange
    """Of the data; nothing outside of it is taken."""
    kind: StagingKind
    format: int = STAGING_FORMAT
    size_bytes: int = 0
    """About what was to come; 0: not said."""


class SealedLayer(msgspec.Struct, frozen=True, array_like=True):
    folder: str
    """Below the transfer's own."""
    range: TokenRange
    """Rows outside of it are no part of what is brought, whatever the files hold."""


class SealedFile(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """What counts of a transfer: layers, oldest first, or one file of rows (`row_file.py`); neither: nothing came."""

    attempt: AttemptId
    layers: tuple[SealedLayer, ...] = ()
    rows_file: str = ""
    """Below the transfer's own folder; empty: there is none."""
    rows: int = 0
    """In the rows file."""
    size_bytes: int = 0
    """Of all of it."""
    format: int = STAGING_FORMAT
    copied_files: int = 0
    """Which could not be taken over as they were."""
    more: tuple[AttemptId, ...] = ()
    """Of rows: attempts that count besides `attempt`."""

    @property
    def attempts(self) -> tuple[AttemptId, ...]:
        return (self.attempt, *self.more)


T = TypeVar("T", TargetFile, SealedFile)


def staging_folder(data: str) -> str:
    """In the folder of a node."""
    return f"{data}/staging"


def checkpoints_folder(data: str) -> str:
    return f"{data}/checkpoints"


def session_folder(staging: str, session: SessionId) -> str:
    return f"{staging}/{session}"


def transfer_folder(staging: str, session: SessionId, transfer: TransferId) -> str:
    return f"{session_folder(staging, session)}/{transfer}"


def target_path(folder: str) -> str:
    """In the folder of a transfer."""
    return f"{folder}/target"


def sealed_path(folder: str) -> str:
    return f"{folder}/SEALED"


async def write_target(disk: Disk, folder: str, target: TargetFile) -> None:
    """Durable on return, in a folder that is there."""
    await replace_file(disk, target_path(folder), msgspec.msgpack.encode(target))


async def read_target(disk: Disk, folder: str) -> TargetFile | None:
    """None where there is none. Raises `Corruption`, or `Refused` for a newer format."""
    return await _read(disk, target_path(folder), TargetFile)


async def write_sealed(disk: Disk, folder: str, sealed: SealedFile) -> None:
    """The moment from which the attempt counts (INV-XFER-2). Everything that it names is durable before."""
    assert _is_possible(sealed)
    await replace_file(disk, sealed_path(folder), msgspec.msgpack.encode(sealed))


async def read_sealed(disk: Disk, folder: str) -> SealedFile | None:
    """None where nothing is sealed. Raises `Corruption`, or `Refused` for a newer format."""
    path = sealed_path(folder)
    sealed = await _read(disk, path, SealedFile)
    if sealed is not None and not _is_possible(sealed):
        raise _no_content(path, "it names what cannot be part of it")
    return sealed


def is_inside(path: str, folder: str) -> bool:
    """Whether an absolute path is below a folder, by its text."""
    return path.startswith(f"{folder}/") and _is_below(path[len(folder) + 1 :])


async def _read(disk: Disk, path: str, kind: type[T]) -> T | None:
    try:
        data = await read_checked_file(disk, path)
    except FileNotFoundError:
        return None
    try:
        stored = msgspec.msgpack.decode(data, type=kind)
    except msgspec.DecodeError as failure:
        raise _no_content(path, str(failure)) from failure
    if stored.format > STAGING_FORMAT:
        raise Refused(
            f"{path} has format {stored.format}, this program knows formats up to {STAGING_FORMAT}",
            advice="run the version that wrote it, or a newer one",
        )
    return stored


def _is_possible(sealed: SealedFile) -> bool:
    names = [one.folder for one in sealed.layers] + ([sealed.rows_file] if sealed.rows_file else [])
    return len(sealed.layers) <= SEALED_LAYERS_MAX and all(_is_below(name) for name in names)


def _is_below(name: str) -> bool:
    return all(part not in ("", ".", "..") for part in name.split("/"))


def _no_content(path: str, why: str) -> Corruption:
    return Corruption(
        f"{path} has a good checksum and not what belongs there ({why})", advice="cancel the job and start it again"
    )
