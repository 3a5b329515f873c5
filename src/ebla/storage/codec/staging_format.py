"""The layout of a node's staging folder: names, the target file, and what a seal leaves.

    <data>/staging/<session>/<transfer>/target        which incarnation of which stack it is for, written at the start
                                        <attempt>/    what a task has sent; has no effect
                                        sealed-…/     what has effect; only the bulk process writes it
                                        SEALED        names it, and is written last
    <data>/checkpoints/<checkpoint>/…                 stacks of this node by hard links, for other nodes to read

The bulk process writes all of it and the shards read it. Both files are replaced atomically and have checksums, so a
file that can be read is complete.
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
"""Of one transfer. A stack is compacted long before it has this many."""


class TargetFile(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """Which incarnation of a stack the staged data is for."""

    table: TableId
    shard: ShardNumber
    incarnation: Incarnation
    """Of the stack. A stack that was emptied, or left and came back since, has another."""
    range: TokenRange
    """Of the data; rows outside of it are refused."""
    kind: StagingKind
    format: int = STAGING_FORMAT
    size_bytes: int = 0
    """About how much is expected; 0: unknown."""


class SealedLayer(msgspec.Struct, frozen=True, array_like=True):
    folder: str
    """Below the transfer's folder."""
    range: TokenRange
    """Rows outside of it are not part of the transfer, whatever the files hold."""


class SealedFile(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """The result of a transfer: layers, oldest first, or one file of rows (`row_file.py`); neither: it was empty."""

    attempt: AttemptId
    layers: tuple[SealedLayer, ...] = ()
    rows_file: str = ""
    """Below the transfer's folder; empty: there is none."""
    rows: int = 0
    """In the rows file."""
    size_bytes: int = 0
    """Of all files together."""
    format: int = STAGING_FORMAT
    copied_files: int = 0
    """Files that could not be linked and were copied."""
    more: tuple[AttemptId, ...] = ()
    """For rows: further attempts that were sealed."""

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
    """Durable on return; the folder must exist."""
    await replace_file(disk, target_path(folder), msgspec.msgpack.encode(target))


async def read_target(disk: Disk, folder: str) -> TargetFile | None:
    """None where there is none. Raises `Corruption`, or `Refused` for a newer format."""
    return await _read(disk, target_path(folder), TargetFile)


async def write_sealed(disk: Disk, folder: str, sealed: SealedFile) -> None:
    """From here on the attempt has effect (INV-XFER-2). Everything that it names must be durable before."""
    assert _is_possible(sealed)
    await replace_file(disk, sealed_path(folder), msgspec.msgpack.encode(sealed))


async def read_sealed(disk: Disk, folder: str) -> SealedFile | None:
    """None where nothing is sealed. Raises `Corruption`, or `Refused` for a newer format."""
    path = sealed_path(folder)
    sealed = await _read(disk, path, SealedFile)
    if sealed is not None and not _is_possible(sealed):
        raise _no_content(path, "it names paths outside of its folder, or too many layers")
    return sealed


def is_inside(path: str, folder: str) -> bool:
    """Whether an absolute path is below a folder, judged by its text."""
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
        f"{path} has a valid checksum and unexpected content ({why})", advice="cancel the job and start it again"
    )
