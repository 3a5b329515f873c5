"""The seal of a transfer: one attempt is looked at, taken over, and named for good.

Its files are moved into a folder that only this process knows, one by one: linked there, the staged name removed, and
then the kernel asked whether anybody still has the file open for writing. If so, or if that cannot be told, the bytes
are copied. Only then are they checked (INV-XFER-4): a task that was given up and still runs can reach neither the new
name nor the file. When all is whole and durable, the marker is written, and that is the moment from which the attempt
counts (INV-XFER-2). A crash before it leaves an attempt that is partly moved, and the same seal asked again goes on.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from ebla.bulk.puts import READ_BYTES, Puts, check_name, checksum_of, layer_of
from ebla.bulk.staging import SEALED_PREFIX, StagedTransfer, StagingParts, uuid_of
from ebla.journal.recovery import make_durable_folder
from ebla.model.errors import Corruption, InvalidRequest, Refused
from ebla.model.identity import AttemptId
from ebla.model.schema import TableSchema
from ebla.model.token import TokenRange
from ebla.model.transfers import ROWS_NAME, StagedFile, StagingKind
from ebla.ports.disk import File
from ebla.storage.build_rows import BuildJob, check_rows
from ebla.storage.staging_format import (
    SEALED_LAYERS_MAX,
    SealedFile,
    SealedLayer,
    sealed_path,
    write_sealed,
)

_COPY_SUFFIX = ".copy"


@dataclass(frozen=True, slots=True)
class SealOrder:
    attempt: AttemptId
    files: tuple[StagedFile, ...]
    layers: tuple[TokenRange, ...]
    schema: TableSchema
    """Of the table as it is now: staged rows are read by it."""


class Sealer:
    def __init__(self, parts: StagingParts, puts: Puts) -> None:
        self._parts = parts
        self._disk = parts.disk
        self._puts = puts

    async def seal(self, staged: StagedTransfer, order: SealOrder) -> SealedFile:
        """Held by a guard all the time. The same again changes nothing; another attempt is refused by the name of the
        one that counts."""
        async with staged.changing:
            staged.state = staged.state.sealing(order.attempt)
            if staged.sealed is None:
                await self._seal(staged, order)
            assert staged.sealed is not None
            if not staged.sealed_is_durable:
                await self._disk.sync_folder(staged.folder)
                staged.sealed_is_durable = True
            return staged.sealed

    async def _seal(self, staged: StagedTransfer, order: SealOrder) -> None:
        self._puts.close_transfer(staged.transfer)
        sealed: SealedFile | None = None
        try:
            _check_order(staged, order)
            sealed = await self._gathered(staged, order)
            # The names of what the marker is about to name.
            await self._disk.sync_folder(staged.folder)
            await write_sealed(self._disk, staged.folder, sealed)
            staged.sealed_is_durable = True
        finally:
            # Whoever asked may be gone in the middle. What is on disk decides, or a second attempt could be named
            # while a shard reads of the first.
            if sealed is not None and self._disk.exists(sealed_path(staged.folder)):
                staged.sealed, staged.state = sealed, staged.state.sealed()
            else:
                staged.state = staged.state.failed()
        await self._disk.run(partial(self._remove_others, staged, sealed))
        staged.received = {one: size for one, size in staged.received.items() if one == sealed.attempt}

    def _remove_others(self, staged: StagedTransfer, sealed: SealedFile) -> None:
        """Attempts, and what is left of seals that failed. What a crash keeps of them goes with the session."""
        disk, kept = self._disk, _seal_folder(sealed)
        for name in disk.list_folder(staged.folder):
            if name != kept and (name.startswith(SEALED_PREFIX) or uuid_of(name) is not None):
                disk.remove_folder(f"{staged.folder}/{name}")
        built_of = f"{staged.folder}/{kept}/{ROWS_NAME}"
        if sealed.layers and disk.exists(built_of):
            disk.unlink(built_of)

    async def _gathered(self, staged: StagedTransfer, order: SealOrder) -> SealedFile:
        if not order.files:
            return SealedFile(order.attempt)
        folder = f"{staged.folder}/{self._folder_name(staged, order.attempt)}"
        await make_durable_folder(self._disk, folder)
        staged.copied_files = 0
        match staged.target.kind:
            case StagingKind.FILES:
                sealed = await self._files(staged, order, folder)
            case StagingKind.ROWS:
                sealed = await self._rows(staged, order, folder)
        await self._disk.sync_folder(folder)
        return sealed

    def _folder_name(self, staged: StagedTransfer, attempt: AttemptId) -> str:
        """The one of a seal of this attempt that was interrupted, or a new one that nobody can guess."""
        prefix = f"{SEALED_PREFIX}{attempt.hex}-"
        for name in self._disk.list_folder(staged.folder):
            if name.startswith(prefix):
                return name
        return prefix + self._parts.chance.bytes(16).hex()

    # -- files -------------------------------------------------------------------------------------------------------

    async def _files(self, staged: StagedTransfer, order: SealOrder, folder: str) -> SealedFile:
        layers = []
        for place, token_range in enumerate(order.layers):
            below = f"{folder}/{place}"
            await make_durable_folder(self._disk, below)
            files = [one for one in order.files if layer_of(one.name) == place]
            await self._taken(staged, order.attempt, folder, files)
            await self._disk.sync_folder(below)
            layers.append(SealedLayer(_below(staged, below), token_range))
        return SealedFile(order.attempt, tuple(layers), size_bytes=sum(one.size_bytes for one in order.files))

    async def _taken(
        self, staged: StagedTransfer, attempt: AttemptId, folder: str, files: Sequence[StagedFile]
    ) -> None:
        source = staged.attempt_folder(attempt)
        for one in files:
            copied = await self._disk.run(partial(self._take_over, source, folder, one))
            staged.copied_files += copied
            file = self._disk.open(f"{folder}/{one.name}")
            try:
                await file.sync()
            finally:
                file.close()

    def _take_over(self, source: str, folder: str, expected: StagedFile) -> bool:
        """Blocks. Whether it had to be copied."""
        disk, isolation = self._disk, self._parts.isolation
        staged, taken = f"{source}/{expected.name}", f"{folder}/{expected.name}"
        if disk.exists(staged):
            # What an earlier seal of this attempt had taken is older: it failed, and the attempt went on.
            if disk.exists(taken):
                disk.unlink(taken)
            disk.link(staged, taken)
            disk.unlink(staged)
        elif not disk.exists(taken):
            raise Refused(f"{expected.name} was not brought by this attempt", advice="name another")
        size_bytes = isolation.size_bytes(taken)
        if size_bytes != expected.size_bytes:
            raise Corruption(f"{expected.name} has {size_bytes} bytes, and {expected.size_bytes} were brought")
        is_the_source = expected.inode != 0 and isolation.inode(taken) == expected.inode
        is_copied = not isolation.has_no_writer(taken)
        if is_copied:
            self._copy_in_place(taken)
        # Also a link's bytes, where they were copied: the writer may have been at them.
        if (is_copied or not is_the_source) and not self._has_checksum(taken, expected, linked=is_the_source):
            raise Corruption(f"{expected.name} is not what its source has", advice="run the job again")
        return is_copied

    def _has_checksum(self, path: str, expected: StagedFile, *, linked: bool) -> bool:
        if linked and not expected.checksum:
            return self._parts.isolation.size_bytes(path) == expected.size_bytes
        return checksum_of(self._disk, path) == expected.checksum

    def _copy_in_place(self, path: str) -> None:
        """The bytes under the same name, in a file that nobody else has open."""
        disk, copy = self._disk, path + _COPY_SUFFIX
        if disk.exists(copy):
            disk.unlink(copy)
        source = disk.open(path)
        try:
            self._copy(source, copy)
        finally:
            source.close()
        disk.rename(copy, path)

    def _copy(self, source: File, path: str) -> None:
        target = self._disk.create(path)
        try:
            offset = 0
            while piece := source.read(offset, READ_BYTES):
                target.write(offset, piece)
                offset += len(piece)
        except BaseException:
            self._disk.unlink(path)
            raise
        finally:
            target.close()

    # -- rows --------------------------------------------------------------------------------------------------------

    async def _rows(self, staged: StagedTransfer, order: SealOrder, folder: str) -> SealedFile:
        (rows,) = order.files
        path, target = f"{folder}/{ROWS_NAME}", staged.target
        await self._taken(staged, order.attempt, folder, order.files)
        if not rows.size_bytes:
            return SealedFile(order.attempt)
        if rows.size_bytes <= self._parts.limits.rows_merged_bytes_max:
            count = await check_rows(self._disk, path, target.range)
            return SealedFile(order.attempt, rows_file=_below(staged, path), rows=count, size_bytes=rows.size_bytes)
        layer = f"{folder}/0"
        await self._disk.run(partial(self._disk.remove_folder, layer))  # of a seal that was interrupted
        job = BuildJob(path, layer, target.range, order.schema)
        await self._parts.building.build(job, self._parts.limits.build_ms / 1000)
        return SealedFile(
            order.attempt, (SealedLayer(_below(staged, layer), target.range),), size_bytes=rows.size_bytes
        )


def _check_order(staged: StagedTransfer, order: SealOrder) -> None:
    """Raises `InvalidRequest`, or `Refused` for layers that are not for this place."""
    target = staged.target
    names = [one.name for one in order.files]
    for name in names:
        check_name(target.kind, name)
    if len(set(names)) != len(names):
        raise InvalidRequest("a seal names a file twice")
    if target.kind is StagingKind.ROWS:
        return
    if len(order.layers) > SEALED_LAYERS_MAX:
        raise InvalidRequest(f"{len(order.layers)} layers are more than a stack can have")
    places = {layer_of(name) for name in names}
    if places != set(range(len(order.layers))):
        raise InvalidRequest(f"a seal of {len(order.layers)} layers names files of layers {sorted(places)}")
    for token_range in order.layers:
        if not target.range.covers(token_range):
            raise Refused(
                f"a layer of {token_range.start} to {token_range.end} is not for a place of "
                f"{target.range.start} to {target.range.end}"
            )


def _below(staged: StagedTransfer, path: str) -> str:
    return path.removeprefix(f"{staged.folder}/")


def _seal_folder(sealed: SealedFile) -> str:
    named = sealed.layers[0].folder if sealed.layers else sealed.rows_file
    return named.partition("/")[0]
