"""The seal of a transfer: one attempt is taken over, checked, and named for good.

Its files are moved, one by one, into a folder that only this process knows: linked there, the staged name removed, and
then the kernel asked whether a process still has the file open for writing. If so, or if the kernel cannot say, the
bytes are copied. Only then are they checked (INV-XFER-4): an abandoned task that still runs can reach neither the new
name nor the file. When everything is complete and durable, the marker is written; from that moment the attempt counts
(INV-XFER-2). A crash before it leaves an attempt that is partly moved, and the same seal continues when it is requested
again.

For rows several attempts may count together, each a run in key order. Each of them is taken over like a single one, and
checked when it is read for the merge. The result is one layer, or one file of rows where they are few, made of all
runs.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import msgspec

from ebla.aio.bounded_gather import gather_bounded
from ebla.bulk.open_puts import READ_BYTES, OpenPuts, check_staged_name, file_checksum, layer_index
from ebla.bulk.staging import RUN_SUFFIX, SEALED_PREFIX, StagedTransfer, parse_uuid
from ebla.bulk.staging_state import sorted_attempts
from ebla.bulk.transfer_context import TransferContext
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
    """The current schema of the table: staged rows are read with it."""
    more: tuple[tuple[AttemptId, StagedFile], ...] = ()
    """For rows: further runs that count."""

    @property
    def attempts(self) -> tuple[AttemptId, ...]:
        return (self.attempt, *(attempt for attempt, _ in self.more))

    @property
    def runs(self) -> tuple[tuple[AttemptId, StagedFile], ...]:
        """For rows: all of them."""
        return (*((self.attempt, file) for file in self.files), *self.more)


class Sealer:
    def __init__(self, context: TransferContext, puts: OpenPuts) -> None:
        self._context = context
        self._disk = context.disk
        self._puts = puts

    async def seal(self, staged: StagedTransfer, spec: SealSpec) -> SealedFile:
        """Runs under a guard all the time. Idempotent; other attempts are refused with the names of those that
        count."""
        async with staged.changing:
            _check_attempts(staged, spec, self._context.limits.runs_max)
            staged.state = staged.state.sealing(spec.attempts)
            if staged.sealed is None:
                await self._seal(staged, spec)
            assert staged.sealed is not None
            if not staged.sealed_is_durable:
                await self._disk.sync_folder(staged.folder)
                staged.sealed_is_durable = True
            return staged.sealed

    async def _seal(self, staged: StagedTransfer, spec: SealSpec) -> None:
        self._puts.close_transfer(staged.transfer)
        sealed: SealedFile | None = None
        try:
            _check_spec(staged, spec)
            sealed = await self._take_attempts(staged, spec)
            await write_sealed(self._disk, staged.folder, sealed)
            staged.sealed_is_durable = True
        finally:
            # The caller may be cancelled in the middle. What is on disk decides, or a second attempt could be named
            # while a shard reads the first.
            if sealed is not None and self._disk.exists(sealed_path(staged.folder)):
                staged.sealed, staged.state = sealed, staged.state.sealed()
            else:
                staged.state = staged.state.failed()
        await self._disk.run(partial(self._remove_others, staged, sealed))
        staged.received = {one: size for one, size in staged.received.items() if one in sealed.attempts}

    def _remove_others(self, staged: StagedTransfer, sealed: SealedFile) -> None:
        """Attempts, and leftovers of failed seals. What a crash leaves of them is removed with the session."""
        disk, kept = self._disk, _seal_folder(sealed)
        for name in disk.list_folder(staged.folder):
            if name != kept and (name.startswith(SEALED_PREFIX) or parse_uuid(name) is not None):
                disk.remove_folder(f"{staged.folder}/{name}")
        if kept and staged.target.kind is StagingKind.ROWS:
            for name in disk.list_folder(f"{staged.folder}/{kept}"):
                if name.endswith(RUN_SUFFIX):
                    disk.unlink(f"{staged.folder}/{kept}/{name}")

    async def _take_attempts(self, staged: StagedTransfer, spec: SealSpec) -> SealedFile:
        if not spec.files:
            return SealedFile(attempt=spec.attempt)
        folder = f"{staged.folder}/{self._folder_name(staged, spec)}"
        staged.copied_files = 0
        match staged.target.kind:
            case StagingKind.FILES:
                sealed = await self._files(staged, spec, folder)
            case StagingKind.ROWS:
                await make_durable_folder(self._disk, folder)
                sealed = await self._rows(staged, spec, folder)
        # Make durable what the marker will name: the entries of the folder, and the folder's own.
        await gather_bounded(
            [partial(self._disk.sync_folder, one) for one in (folder, staged.folder)], CONCURRENT_SYNCS_MAX
        )
        return sealed

    def _folder_name(self, staged: StagedTransfer, spec: SealSpec) -> str:
        """That of an interrupted seal of this attempt, or a new one that no task can guess. Runs have their own names
        in it: a failed seal of other runs may have taken some of these too."""
        prefix = f"{SEALED_PREFIX}{spec.attempt.hex}-" if staged.target.kind is StagingKind.FILES else SEALED_PREFIX
        for name in self._disk.list_folder(staged.folder):
            if name.startswith(prefix):
                return name
        return prefix + self._context.rng.bytes(16).hex()

    # -- files -------------------------------------------------------------------------------------------------------

    async def _files(self, staged: StagedTransfer, spec: SealSpec, folder: str) -> SealedFile:
        """Small files are taken over in one call and synced concurrently: they share the cost of a sync."""
        below = [f"{folder}/{place}" for place in range(len(spec.layers))]
        for one in below:
            self._disk.make_folder(one)
        for files in _chunks(spec.files):
            staged.copied_files += await self._disk.run(
                partial(self._take_all, staged.attempt_folder(spec.attempt), folder, files)
            )
            await gather_bounded([partial(self._sync, f"{folder}/{one.name}") for one in files], CONCURRENT_SYNCS_MAX)
        await gather_bounded([partial(self._disk.sync_folder, one) for one in below], CONCURRENT_SYNCS_MAX)
        layers = tuple(
            SealedLayer(_below(staged, one), token_range) for one, token_range in zip(below, spec.layers, strict=True)
        )
        return SealedFile(attempt=spec.attempt, layers=layers, size_bytes=sum(one.size_bytes for one in spec.files))

    def _take_all(self, source: str, folder: str, files: Sequence[StagedFile]) -> int:
        """Blocks. Returns how many had to be copied."""
        return sum(self._take_over((f"{source}/{one.name}", f"{folder}/{one.name}"), one) for one in files)

    async def _sync(self, path: str) -> None:
        file = self._disk.open(path)
        try:
            await file.sync()
        finally:
            file.close()

    def _take_over(self, paths: tuple[str, str], expected: StagedFile) -> bool:
        """Moves the file from the first path to the second, and checks it. Blocks. Returns whether it had to be
        copied."""
        self._move(paths, expected)
        taken = paths[1]
        is_the_source = expected.inode != 0 and self._context.isolation.inode(taken) == expected.inode
        is_copied = self._isolate(taken)
        # Also check linked bytes that were copied: the writer may have changed them.
        if (is_copied or not is_the_source) and not self._has_checksum(taken, expected, linked=is_the_source):
            raise Corruption(f"{expected.name} is not what its source has", advice="run the job again")
        return is_copied

    def _take_run(self, paths: tuple[str, str], expected: StagedFile) -> bool:
        """Like `_take_over`, but the merge verifies the checksum, after isolation (INV-XFER-4)."""
        self._move(paths, expected)
        return self._isolate(paths[1])

    def _move(self, paths: tuple[str, str], expected: StagedFile) -> None:
        disk = self._disk
        staged, taken = paths
        if disk.exists(staged):
            # What an earlier seal of this attempt took is older: that seal failed, and the attempt continued.
            if disk.exists(taken):
                disk.unlink(taken)
            disk.link(staged, taken)
            disk.unlink(staged)
        elif not disk.exists(taken):
            raise Refused(f"{expected.name} was not staged by this attempt", advice="name another attempt")
        size_bytes = self._context.isolation.size_bytes(taken)
        if size_bytes != expected.size_bytes:
            raise Corruption(f"{expected.name} has {size_bytes} bytes, and {expected.size_bytes} were staged")

    def _isolate(self, taken: str) -> bool:
        """Returns whether it had to be copied: a process can still write to it, or the kernel cannot say."""
        is_copied = not self._context.isolation.has_no_writer(taken)
        if is_copied:
            self._copy_in_place(taken)
        return is_copied

    def _has_checksum(self, path: str, expected: StagedFile, *, linked: bool) -> bool:
        if linked and not expected.checksum:
            return self._context.isolation.size_bytes(path) == expected.size_bytes
        return file_checksum(self._disk, path) == expected.checksum

    def _copy_in_place(self, path: str) -> None:
        """The bytes under the same name, in a file that no other process has open."""
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

    async def _rows(self, staged: StagedTransfer, spec: SealSpec, folder: str) -> SealedFile:
        limits, token_range = self._context.limits, staged.target.range
        runs = await self._take_runs(staged, spec, folder)
        sealed = SealedFile(attempt=spec.attempt, more=sorted_attempts(attempt for attempt, _ in spec.more))
        if not runs:
            return sealed
        size_bytes = sum(file.size_bytes for _, file in spec.runs)
        self._context.check_space(size_bytes)
        sealed = msgspec.structs.replace(sealed, size_bytes=size_bytes)
        if size_bytes <= limits.rows_merged_bytes_max:
            path = f"{folder}/{ROWS_NAME}"
            rules = RunRules(token_range, spec.schema, runs)
            rows = await self._disk.run(partial(self._merge_rows, tuple(runs), path, rules))
            await self._sync(path)
            return msgspec.structs.replace(sealed, rows_file=_below(staged, path), rows=rows)
        layer = f"{folder}/0"
        for left in (layer, layer + ROUNDS_SUFFIX):  # of an interrupted seal
            await self._disk.run(partial(self._disk.remove_folder, left))
        job = BuildJob(
            rows_files=tuple(runs),
            output_folder=layer,
            range=token_range,
            schema=spec.schema,
            checksums=tuple(runs.values()),
        )
        await self._context.building.build(job, limits.build_ms / 1000)
        return msgspec.structs.replace(sealed, layers=(SealedLayer(_below(staged, layer), token_range),))

    async def _take_runs(self, staged: StagedTransfer, spec: SealSpec, folder: str) -> dict[str, int]:
        """Those that have rows, with the checksum each must have. Not synced: they are only read from here on, and
        removed when the seal is done."""
        runs = {}
        for attempt, expected in spec.runs:
            taken = f"{folder}/{attempt.hex}{RUN_SUFFIX}"
            paths = f"{staged.attempt_folder(attempt)}/{ROWS_NAME}", taken
            staged.copied_files += await self._disk.run(partial(self._take_run, paths, expected))
            if expected.size_bytes:
                runs[taken] = expected.checksum
        return runs

    def _merge_rows(self, runs: Sequence[str], path: str, rules: RunRules) -> int:
        """Blocks. Rewritten even for a single run: its file may have other names, which tasks know."""
        if self._disk.exists(path):
            self._disk.unlink(path)
        return merge_small_runs(self._disk, runs, path, rules)


def _check_attempts(staged: StagedTransfer, spec: SealSpec, runs_max: int) -> None:
    """Raises `InvalidRequest`."""
    if spec.more and (staged.target.kind is not StagingKind.ROWS or not spec.files):
        raise InvalidRequest("only attempts of rows can count together, and each with its files")
    if len(spec.attempts) > runs_max:
        raise InvalidRequest(f"{len(spec.attempts)} runs are more than one transfer can have")
    if len(set(spec.attempts)) != len(spec.attempts):
        raise InvalidRequest("a seal names an attempt twice")


def _check_spec(staged: StagedTransfer, spec: SealSpec) -> None:
    """Raises `InvalidRequest`, or `Refused` for layers outside the target's range."""
    target = staged.target
    names = [one.name for one in spec.files]
    for name in (*names, *(one.name for _, one in spec.more)):
        check_staged_name(target.kind, name)
    if len(set(names)) != len(names):
        raise InvalidRequest("a seal names a file twice")
    if target.kind is StagingKind.ROWS:
        return
    if len(spec.layers) > SEALED_LAYERS_MAX:
        raise InvalidRequest(f"{len(spec.layers)} layers are more than a stack can have")
    places = {layer_index(name) for name in names}
    if places != set(range(len(spec.layers))):
        raise InvalidRequest(f"a seal of {len(spec.layers)} layers names files of layers {sorted(places)}")
    for token_range in spec.layers:
        if not target.range.covers(token_range):
            raise Refused(
                f"a layer of {token_range.start} to {token_range.end} is outside the target's range, which is "
                f"{target.range.start} to {target.range.end}"
            )


def _chunks(files: Sequence[StagedFile]) -> Iterator[list[StagedFile]]:
    """Files that are taken over in one call, in order. Large files one at a time: a cancellation waits for the call."""
    chunk: list[StagedFile] = []
    for one in files:
        if chunk and sum(taken.size_bytes for taken in chunk) + one.size_bytes > SEAL_CHUNK_BYTES:
            yield chunk
            chunk = []
        chunk.append(one)
    if chunk:
        yield chunk


def _below(staged: StagedTransfer, path: str) -> str:
    return path.removeprefix(f"{staged.folder}/")


def _seal_folder(sealed: SealedFile) -> str:
    named = sealed.layers[0].folder if sealed.layers else sealed.rows_file
    return named.partition("/")[0]
