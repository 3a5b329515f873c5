"""The seal of a transfer: one attempt is looked at, taken over, and named for good.

Its files are moved into a folder that only this process knows, one by one: linked there, the staged name removed, and
then the kernel asked whether anybody still has the file open for writing. If so, or if that cannot be told, the bytes
are copied. Only then are they checked (INV-XFER-4): a task that was given up and still runs can reach neither the new
name nor the file. When all is whole and durable, the marker is written, and that is the moment from which the attempt
counts (INV-XFER-2). A crash before it leaves an attempt that is partly moved, and the same seal asked again goes on.

Of rows several attempts may count together, each a run in key order. Every one of them is taken over like a single one,
and looked at by whoever reads it to merge it; what is left behind is one layer, or one file of rows where they are few,
made of all of them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import msgspec

from ebla.aio.bounded_gather import gather_bounded
from ebla.bulk.open_puts import READ_BYTES, OpenPuts, check_staged_name, file_checksum, layer_index
from ebla.bulk.staging import RUN_SUFFIX, SEALED_PREFIX, StagedTransfer, StagingDeps, parse_uuid
from ebla.bulk.staging_state import sorted_attempts
from ebla.journal.recovery import make_durable_folder
from ebla.model.errors import Corruption, InvalidRequest, Refused
from ebla.model.identity import AttemptId
from ebla.model.schema import TableSchema
from ebla.model.token import TokenRange
from ebla.model.transfers import ROWS_NAME, StagedFile, StagingKind
from ebla.ports.disk import File
from ebla.storage.codec.staging_format import (
    SEALED_LAYERS_MAX,
    SealedFile,
    SealedLayer,
    sealed_path,
    write_sealed,
)
from ebla.storage.compaction.layer_build import ROUNDS_SUFFIX, BuildJob, merge_small_runs
from ebla.storage.merge.run_merge import RunRules

_COPY_SUFFIX = ".copy"
CONCURRENT_SYNCS_MAX = 8
SEAL_CHUNK_BYTES = 16 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class SealSpec:
    attempt: AttemptId
    files: tuple[StagedFile, ...]
    layers: tuple[TokenRange, ...]
    schema: TableSchema
    """Of the table as it is now: staged rows are read by it."""
    more: tuple[tuple[AttemptId, StagedFile], ...] = ()
    """Of rows: further runs that count."""

    @property
    def attempts(self) -> tuple[AttemptId, ...]:
        return (self.attempt, *(attempt for attempt, _ in self.more))

    @property
    def runs(self) -> tuple[tuple[AttemptId, StagedFile], ...]:
        """Of rows: all of them."""
        return (*((self.attempt, file) for file in self.files), *self.more)


class Sealer:
    def __init__(self, parts: StagingDeps, puts: OpenPuts) -> None:
        self._parts = parts
        self._disk = parts.disk
        self._puts = puts

    async def seal(self, staged: StagedTransfer, order: SealSpec) -> SealedFile:
        """Held by a guard all the time. The same again changes nothing; other attempts are refused by the names of
        those that count."""
        async with staged.changing:
            _check_attempts(staged, order, self._parts.limits.runs_max)
            staged.state = staged.state.sealing(order.attempts)
            if staged.sealed is None:
                await self._seal(staged, order)
            assert staged.sealed is not None
            if not staged.sealed_is_durable:
                await self._disk.sync_folder(staged.folder)
                staged.sealed_is_durable = True
            return staged.sealed

    async def _seal(self, staged: StagedTransfer, order: SealSpec) -> None:
        self._puts.close_transfer(staged.transfer)
        sealed: SealedFile | None = None
        try:
            _check_order(staged, order)
            sealed = await self._gathered(staged, order)
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
        staged.received = {one: size for one, size in staged.received.items() if one in sealed.attempts}

    def _remove_others(self, staged: StagedTransfer, sealed: SealedFile) -> None:
        """Attempts, and what is left of seals that failed. What a crash keeps of them goes with the session."""
        disk, kept = self._disk, _seal_folder(sealed)
        for name in disk.list_folder(staged.folder):
            if name != kept and (name.startswith(SEALED_PREFIX) or parse_uuid(name) is not None):
                disk.remove_folder(f"{staged.folder}/{name}")
        if kept and staged.target.kind is StagingKind.ROWS:
            for name in disk.list_folder(f"{staged.folder}/{kept}"):
                if name.endswith(RUN_SUFFIX):
                    disk.unlink(f"{staged.folder}/{kept}/{name}")

    async def _gathered(self, staged: StagedTransfer, order: SealSpec) -> SealedFile:
        if not order.files:
            return SealedFile(attempt=order.attempt)
        folder = f"{staged.folder}/{self._folder_name(staged, order)}"
        staged.copied_files = 0
        match staged.target.kind:
            case StagingKind.FILES:
                sealed = await self._files(staged, order, folder)
            case StagingKind.ROWS:
                await make_durable_folder(self._disk, folder)
                sealed = await self._rows(staged, order, folder)
        # The names of what the marker is about to name: in the folder, and its own.
        await gather_bounded(
            [partial(self._disk.sync_folder, one) for one in (folder, staged.folder)], CONCURRENT_SYNCS_MAX
        )
        return sealed

    def _folder_name(self, staged: StagedTransfer, order: SealSpec) -> str:
        """The one of a seal of this attempt that was interrupted, or a new one that nobody can guess. Runs have names
        of their own in it: a seal of other runs that failed has perhaps taken some of these too."""
        prefix = f"{SEALED_PREFIX}{order.attempt.hex}-" if staged.target.kind is StagingKind.FILES else SEALED_PREFIX
        for name in self._disk.list_folder(staged.folder):
            if name.startswith(prefix):
                return name
        return prefix + self._parts.rng.bytes(16).hex()

    # -- files -------------------------------------------------------------------------------------------------------

    async def _files(self, staged: StagedTransfer, order: SealSpec, folder: str) -> SealedFile:
        """Small files are taken over by one call and synced side by side: they share what a sync costs."""
        below = [f"{folder}/{place}" for place in range(len(order.layers))]
        for one in below:
            self._disk.make_folder(one)
        for files in _portions(order.files):
            staged.copied_files += await self._disk.run(
                partial(self._take_all, staged.attempt_folder(order.attempt), folder, files)
            )
            await gather_bounded([partial(self._sync, f"{folder}/{one.name}") for one in files], CONCURRENT_SYNCS_MAX)
        await gather_bounded([partial(self._disk.sync_folder, one) for one in below], CONCURRENT_SYNCS_MAX)
        layers = tuple(
            SealedLayer(_below(staged, one), token_range) for one, token_range in zip(below, order.layers, strict=True)
        )
        return SealedFile(attempt=order.attempt, layers=layers, size_bytes=sum(one.size_bytes for one in order.files))

    def _take_all(self, source: str, folder: str, files: Sequence[StagedFile]) -> int:
        """Blocks. How many had to be copied."""
        return sum(self._take_over((f"{source}/{one.name}", f"{folder}/{one.name}"), one) for one in files)

    async def _sync(self, path: str) -> None:
        file = self._disk.open(path)
        try:
            await file.sync()
        finally:
            file.close()

    def _take_over(self, paths: tuple[str, str], expected: StagedFile) -> bool:
        """From the first path to the second, and looked at. Blocks. Whether it had to be copied."""
        self._move(paths, expected)
        taken = paths[1]
        is_the_source = expected.inode != 0 and self._parts.isolation.inode(taken) == expected.inode
        is_copied = self._isolate(taken)
        # Also a link's bytes, where they were copied: the writer may have been at them.
        if (is_copied or not is_the_source) and not self._has_checksum(taken, expected, linked=is_the_source):
            raise Corruption(f"{expected.name} is not what its source has", advice="run the job again")
        return is_copied

    def _take_run(self, paths: tuple[str, str], expected: StagedFile) -> bool:
        """The same, but that its bytes are looked at by whoever merges them: after this, as INV-XFER-4 wants it."""
        self._move(paths, expected)
        return self._isolate(paths[1])

    def _move(self, paths: tuple[str, str], expected: StagedFile) -> None:
        disk = self._disk
        staged, taken = paths
        if disk.exists(staged):
            # What an earlier seal of this attempt had taken is older: it failed, and the attempt went on.
            if disk.exists(taken):
                disk.unlink(taken)
            disk.link(staged, taken)
            disk.unlink(staged)
        elif not disk.exists(taken):
            raise Refused(f"{expected.name} was not brought by this attempt", advice="name another")
        size_bytes = self._parts.isolation.size_bytes(taken)
        if size_bytes != expected.size_bytes:
            raise Corruption(f"{expected.name} has {size_bytes} bytes, and {expected.size_bytes} were brought")

    def _isolate(self, taken: str) -> bool:
        """Whether it had to be copied: somebody can still write to it, or that cannot be told."""
        is_copied = not self._parts.isolation.has_no_writer(taken)
        if is_copied:
            self._copy_in_place(taken)
        return is_copied

    def _has_checksum(self, path: str, expected: StagedFile, *, linked: bool) -> bool:
        if linked and not expected.checksum:
            return self._parts.isolation.size_bytes(path) == expected.size_bytes
        return file_checksum(self._disk, path) == expected.checksum

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

    async def _rows(self, staged: StagedTransfer, order: SealSpec, folder: str) -> SealedFile:
        limits, token_range = self._parts.limits, staged.target.range
        runs = await self._taken_runs(staged, order, folder)
        sealed = SealedFile(attempt=order.attempt, more=sorted_attempts(attempt for attempt, _ in order.more))
        if not runs:
            return sealed
        size_bytes = sum(file.size_bytes for _, file in order.runs)
        self._parts.check_space(size_bytes)
        sealed = msgspec.structs.replace(sealed, size_bytes=size_bytes)
        if size_bytes <= limits.rows_merged_bytes_max:
            path = f"{folder}/{ROWS_NAME}"
            rules = RunRules(token_range, order.schema, runs)
            rows = await self._disk.run(partial(self._merge_few, tuple(runs), path, rules))
            await self._sync(path)
            return msgspec.structs.replace(sealed, rows_file=_below(staged, path), rows=rows)
        layer = f"{folder}/0"
        for left in (layer, layer + ROUNDS_SUFFIX):  # of a seal that was interrupted
            await self._disk.run(partial(self._disk.remove_folder, left))
        job = BuildJob(
            rows_files=tuple(runs),
            output_folder=layer,
            range=token_range,
            schema=order.schema,
            checksums=tuple(runs.values()),
        )
        await self._parts.building.build(job, limits.build_ms / 1000)
        return msgspec.structs.replace(sealed, layers=(SealedLayer(_below(staged, layer), token_range),))

    async def _taken_runs(self, staged: StagedTransfer, order: SealSpec, folder: str) -> dict[str, int]:
        """Those that have rows, with the checksum that each must have. Not synced: they are only read from here on,
        and gone when the seal is done."""
        runs = {}
        for attempt, expected in order.runs:
            taken = f"{folder}/{attempt.hex}{RUN_SUFFIX}"
            paths = f"{staged.attempt_folder(attempt)}/{ROWS_NAME}", taken
            staged.copied_files += await self._disk.run(partial(self._take_run, paths, expected))
            if expected.size_bytes:
                runs[taken] = expected.checksum
        return runs

    def _merge_few(self, runs: Sequence[str], path: str, rules: RunRules) -> int:
        """Blocks. Written anew even of a single run: its file may have other names, which others know."""
        if self._disk.exists(path):
            self._disk.unlink(path)
        return merge_small_runs(self._disk, runs, path, rules)


def _check_attempts(staged: StagedTransfer, order: SealSpec, runs_max: int) -> None:
    """Raises `InvalidRequest`."""
    if order.more and (staged.target.kind is not StagingKind.ROWS or not order.files):
        raise InvalidRequest("several attempts count together only of rows, and each with what it brought")
    if len(order.attempts) > runs_max:
        raise InvalidRequest(f"{len(order.attempts)} runs are more than one transfer can have")
    if len(set(order.attempts)) != len(order.attempts):
        raise InvalidRequest("a seal names an attempt twice")


def _check_order(staged: StagedTransfer, order: SealSpec) -> None:
    """Raises `InvalidRequest`, or `Refused` for layers that are not for this place."""
    target = staged.target
    names = [one.name for one in order.files]
    for name in (*names, *(one.name for _, one in order.more)):
        check_staged_name(target.kind, name)
    if len(set(names)) != len(names):
        raise InvalidRequest("a seal names a file twice")
    if target.kind is StagingKind.ROWS:
        return
    if len(order.layers) > SEALED_LAYERS_MAX:
        raise InvalidRequest(f"{len(order.layers)} layers are more than a stack can have")
    places = {layer_index(name) for name in names}
    if places != set(range(len(order.layers))):
        raise InvalidRequest(f"a seal of {len(order.layers)} layers names files of layers {sorted(places)}")
    for token_range in order.layers:
        if not target.range.covers(token_range):
            raise Refused(
                f"a layer of {token_range.start} to {token_range.end} is not for a place of "
                f"{target.range.start} to {target.range.end}"
            )


def _portions(files: Sequence[StagedFile]) -> Iterator[list[StagedFile]]:
    """What is taken over by one call, in their order. Large files one at a time: whoever cancels waits for a call."""
    portion: list[StagedFile] = []
    for one in files:
        if portion and sum(taken.size_bytes for taken in portion) + one.size_bytes > SEAL_CHUNK_BYTES:
            yield portion
            portion = []
        portion.append(one)
    if portion:
        yield portion


def _below(staged: StagedTransfer, path: str) -> str:
    return path.removeprefix(f"{staged.folder}/")


def _seal_folder(sealed: SealedFile) -> str:
    named = sealed.layers[0].folder if sealed.layers else sealed.rows_file
    return named.partition("/")[0]
