"""Copies files and rows between replicas under one session: open staging, take checkpoints, run tasks, seal, adopt.

The order matters. From the opening of its staging on, the target keeps its tombstones; only then is a checkpoint taken
anywhere. Otherwise: the target drops a tombstone; the checkpoint of the source still has the row below it; the copy
brings the row back to life.
"""

import asyncio
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import msgspec

from ebla.feed.topology_view import TopologyView, View
from ebla.model.errors import EblaError, InternalError, Stale
from ebla.model.identity import HostId, JobId, Replica, SessionId, TableId, TransferId
from ebla.model.records.jobs import JobProgress
from ebla.model.token import TokenRange
from ebla.model.transfers import (
    CheckpointFile,
    FileMove,
    MoveResult,
    RowMove,
    RowTarget,
    StagingKind,
    TransferResult,
    TransferSource,
    TransferTarget,
    TransferTask,
)
from ebla.ports.transfer_engine import TransferEngine
from ebla.transfers.token_ranges import covering_range, format_range
from ebla.transfers.transfer_client import SealedAttempt, StagingSpec, TransferClient, TransferScope

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TabletCopy:
    """The files of one replica of a tablet, to another replica."""

    range: TokenRange
    source: Replica
    target: Replica


@dataclass(frozen=True, slots=True)
class RowCopy:
    """Rows of a range that lies in one stack on each of the targets, merged from all sources."""

    range: TokenRange
    sources: tuple[HostId, ...]
    targets: tuple[Replica, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferTotals:
    """What was adopted."""

    size_bytes: int = 0
    rows: int = 0
    layers: int = 0
    short_cut: bool = False

    def __add__(self, other: "TransferTotals") -> "TransferTotals":
        return TransferTotals(
            size_bytes=self.size_bytes + other.size_bytes,
            rows=self.rows + other.rows,
            layers=self.layers + other.layers,
            short_cut=self.short_cut or other.short_cut,
        )


class ProgressMeter:
    """Calls `report` with each change of the progress; `report` is quick and never fails."""

    def __init__(self, report: Callable[[JobProgress], None]) -> None:
        self._report = report
        self._bytes_before = 0
        self.progress = JobProgress()

    def step(self, text: str) -> None:
        self._set(step=text)

    def expect(self, size_bytes: int) -> None:
        """So many more bytes are about to move."""
        self._bytes_before = self.progress.bytes_done
        self._set(bytes_total=self.progress.bytes_total + size_bytes)

    def moved(self, size_bytes: int) -> None:
        """So many of the bytes last expected have moved."""
        self._set(bytes_done=max(self.progress.bytes_done, self._bytes_before + size_bytes))

    def tasks(self, done: int, total: int) -> None:
        self._set(tasks_done=done, tasks_total=total)

    def _set(self, **changes: Any) -> None:
        changed = msgspec.structs.replace(self.progress, **changes)
        if changed != self.progress:
            self.progress = changed
            self._report(changed)


LayerRanges = tuple[TokenRange, ...]
"""The range to take of each layer of a part, as the source has them: the files may hold more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferRun:
    job: JobId
    table: TableId
    session: SessionId
    client: TransferClient
    engine: TransferEngine
    topology: TopologyView
    meter: ProgressMeter
    poll_ms: int = 1_000
    """How often progress is polled while tasks run."""
    ranges_at_once_max: int = 64
    """Ranges with checkpoints and staging at the same time."""

    @property
    def view(self) -> View:
        return self.topology.current

    @property
    def scope(self) -> TransferScope:
        """With the newest version: a run may outlive the version that it began with."""
        return TransferScope(job=self.job, session=self.session, table=self.table, version=self.view.version)

    # ---- files

    async def copy_files(self, copies: Sequence[TabletCopy], *, use_links: bool) -> TransferTotals:
        """All copies are from one host to one host."""
        self.meter.step("opening the target")
        opened = await self._open_stagings(StagingKind.FILES, [(copy.range, copy.target) for copy in copies])
        self.meter.step("taking a checkpoint")
        one_shard = copies[0].source if len(copies) == 1 else None
        covered = covering_range([copy.range for copy in copies])
        source = await self.client.take_checkpoint(self.scope, copies[0].source.host, covered, one_shard)
        moves = [
            FileMove(source, part, target)
            for copy, target in zip(copies, opened)
            if (part := _part_of(source, copy)) is not None
        ]
        await self._check_room(moves)
        totals = TransferTotals()
        if moves:
            moves = moves if use_links else [_without_links(move) for move in moves]
            targets = [move.target for move in moves]
            self.meter.expect(sum(move.size_bytes for move in moves))
            self.meter.step("copying files")
            results = _complete_attempts(moves, await self.run_tasks(moves, targets))
            layers = {move.target.transfer: _layer_ranges(move) for move in moves}
            totals = await self._seal_and_adopt(targets, results, layers)
            self.meter.moved(totals.size_bytes)
        await self.client.release(self.session, [source], opened)
        return totals

    async def _check_room(self, moves: Sequence[FileMove]) -> None:
        """Now that sizes are known, ask each node for room for its largest move, so that a full disk refuses before it
        is full. Not for their sum: linked files take no room."""
        largest: dict[HostId, FileMove] = {}
        for move in moves:
            known = largest.get(move.target.host)
            if known is None or move.size_bytes > known.size_bytes:
                largest[move.target.host] = move
        stagings = [
            StagingSpec(
                replica=Replica(move.target.host, move.target.shard),
                range=move.target.range,
                kind=move.target.kind,
                transfer=move.target.transfer,
                size_bytes=move.size_bytes,
            )
            for move in largest.values()
        ]
        scope = self.scope
        await self.client.all([partial(self.client.open_staging, scope, staging) for staging in stagings])

    # ---- rows

    async def copy_rows(self, copies: Sequence[RowCopy], text: str) -> TransferTotals:
        """Each target gets the cells, merged from all sources, that it lacks."""
        totals, size = TransferTotals(), self.ranges_at_once_max
        for start in range(0, len(copies), size):
            done = f" ({start} of {len(copies)} ranges done)" if len(copies) > size else ""
            totals += await self._copy_rows(copies[start : start + size], f"{text}{done}")
        return totals

    async def _copy_rows(self, copies: Sequence[RowCopy], text: str) -> TransferTotals:
        self.meter.step(f"{text}: opening the targets")
        targets = await self._open_stagings(
            StagingKind.ROWS, [(copy.range, target) for copy in copies for target in copy.targets]
        )
        self.meter.step(f"{text}: taking checkpoints")
        sources = await self.take_checkpoints([(copy.range, copy.sources) for copy in copies])
        schema = self.view.schemas.get(self.table)
        moves: list[RowMove] = []
        remaining = iter(targets)
        for copy in copies:
            own = {host: number for number, host in enumerate(copy.sources)}
            row_targets = tuple(RowTarget(next(remaining), own.get(replica.host)) for replica in copy.targets)
            parts = tuple(narrow_source(sources[host], copy.range) for host in copy.sources)
            moves.append(RowMove(range=copy.range, sources=parts, targets=row_targets, schema=schema))
        self.meter.expect(0)  # how much the targets lack is not known
        self.meter.step(text)
        results = await self.run_tasks(moves, targets)
        totals = await self._seal_and_adopt(targets, results, {})
        await self.client.release(self.session, list(sources.values()), targets)
        return totals

    async def take_checkpoints(
        self, wanted: Sequence[tuple[TokenRange, tuple[HostId, ...]]]
    ) -> Mapping[HostId, TransferSource]:
        """One checkpoint on each host, over all ranges wanted of it, all at about the same time."""
        ranges: dict[HostId, list[TokenRange]] = {}
        for part, hosts in wanted:
            for host in hosts:
                ranges.setdefault(host, []).append(part)
        scope = self.scope
        taken = await self.client.all(
            [partial(self.client.take_checkpoint, scope, host, covering_range(parts)) for host, parts in ranges.items()]
        )
        return dict(zip(ranges, taken))

    # ---- tasks

    async def run_tasks(
        self, tasks: Sequence[TransferTask], targets: Collection[TransferTarget] = ()
    ) -> Sequence[TransferResult]:
        """Runs them on the engine and reports progress meanwhile."""
        transfers: dict[HostId, list[TransferId]] = {}
        for target in targets:
            transfers.setdefault(target.host, []).append(target.transfer)
        return await run_beside(self.engine.run(self.job, tasks), self._poll_progress(transfers))

    async def _poll_progress(self, transfers: Mapping[HostId, Collection[TransferId]]) -> None:
        while True:
            await asyncio.sleep(self.poll_ms / 1000)
            counts = self.engine.tasks(self.job)
            self.meter.tasks(counts.done, counts.total)
            received = 0
            for host, own in transfers.items():
                stagings = await self.client.stagings(host, self.session)
                received += sum(staging.received_bytes for staging in stagings if staging.transfer in own)
            self.meter.moved(received)

    # ---- stage, seal, adopt

    async def _open_stagings(
        self, kind: StagingKind, stacks: Sequence[tuple[TokenRange, Replica]]
    ) -> list[TransferTarget]:
        scope = self.scope
        stagings = [
            StagingSpec(replica=replica, range=part, kind=kind, transfer=self.client.new_transfer())
            for part, replica in stacks
        ]
        return await self.client.all([partial(self.client.open_staging, scope, staging) for staging in stagings])

    async def _seal_and_adopt(
        self,
        targets: Sequence[TransferTarget],
        results: Sequence[TransferResult],
        layers: Mapping[TransferId, LayerRanges],
    ) -> TransferTotals:
        self.meter.step("sealing and adopting")
        attempts: dict[TransferId, list[MoveResult]] = {target.transfer: [] for target in targets}
        for result in results:
            if isinstance(result, MoveResult) and result.transfer in attempts:
                attempts[result.transfer].append(result)
        adopted = await self.client.all(
            [
                partial(self._adopt_one, target, attempts[target.transfer], layers.get(target.transfer, ()))
                for target in targets
            ]
        )
        return sum(adopted, TransferTotals())

    async def _adopt_one(
        self, target: TransferTarget, attempts: Sequence[MoveResult], layers: LayerRanges
    ) -> TransferTotals:
        if not attempts:
            raise InternalError(f"the engine reports no complete attempt of transfer {target.transfer}")
        if not any(attempt.files for attempt in attempts):
            return TransferTotals()  # the target lacked nothing
        winner = await self._seal_first(target, [attempt for attempt in attempts if attempt.files], layers)
        adopted = await self.client.adopt(self.table, target)
        return TransferTotals(
            size_bytes=winner.size_bytes, rows=winner.rows, layers=adopted.layers, short_cut=winner.short_cut
        )

    async def _seal_first(
        self, target: TransferTarget, attempts: Sequence[MoveResult], layers: LayerRanges
    ) -> MoveResult:
        """The first attempt that can be sealed. An attempt that was repeated meanwhile may have left less than it
        reported."""
        failure: EblaError | None = None
        for attempt in attempts:
            try:
                await self.client.seal(target, [SealedAttempt(attempt.attempt, attempt.files)], layers)
            except EblaError as error:
                if error.is_transient:
                    raise
                failure = failure or error
            else:
                return attempt
        assert failure is not None
        raise failure


def _part_of(source: TransferSource, copy: TabletCopy) -> int | None:
    """None: the tablet has no rows there. Raises `Stale` if the tablet has been split, merged or moved to another shard
    since the plan: to bring nothing would look like success."""
    for number, part in enumerate(source.parts):
        if part.shard == copy.source.shard and part.range == copy.range:
            return number if part.layers else None
    other = next((part for part in source.parts if part.range.overlaps(copy.range)), None)
    if other is not None:
        raise Stale(f"the source now has {format_range(other.range)} at shard {other.shard}", advice="plan again")
    return None


def _without_links(move: FileMove) -> FileMove:
    """Without the machine id a task takes the folders to be on another machine."""
    source = msgspec.structs.replace(move.source, machine="", folder="")
    target = msgspec.structs.replace(move.target, machine="", folder="")
    return msgspec.structs.replace(move, source=source, target=target)


def narrow_source(source: TransferSource, part: TokenRange) -> TransferSource:
    """With only the stacks that overlap the range. Tasks read rows by range, and the descriptor of each of a thousand
    ranges must not list the files of all of them."""
    return msgspec.structs.replace(source, parts=tuple(one for one in source.parts if one.range.overlaps(part)))


def _layer_ranges(move: FileMove) -> LayerRanges:
    return tuple(layer.range for layer in move.source.parts[move.part].layers)


def _complete_attempts(moves: Sequence[FileMove], results: Sequence[TransferResult]) -> list[TransferResult]:
    """INV-XFER-2: the attempts that report every file of their part with its size, and for a linked file its inode. The
    seal only knows the files that are reported to it: it would not miss one that is not."""
    wanted = {move.target.transfer: _files_of(move) for move in moves}
    return [one for one in results if isinstance(one, MoveResult) and _is_complete(one, wanted.get(one.transfer, {}))]


def _files_of(move: FileMove) -> dict[str, CheckpointFile]:
    layers = move.source.parts[move.part].layers
    return {f"{number}/{file.name}": file for number, layer in enumerate(layers) for file in layer.files}


def _is_complete(attempt: MoveResult, wanted: Mapping[str, CheckpointFile]) -> bool:
    reported = {file.name: file for file in attempt.files}
    return reported.keys() == wanted.keys() and all(
        reported[name].size_bytes == file.size_bytes and reported[name].inode in (0, file.inode)
        for name, file in wanted.items()
    )


async def run_beside(work: Coroutine[Any, Any, T], companion: Coroutine[Any, Any, None]) -> T:
    """Runs the companion until the work ends. An error of the work is raised unwrapped."""
    failure: EblaError
    async with asyncio.TaskGroup() as tasks:
        beside = tasks.create_task(companion)
        try:
            return await work
        except EblaError as error:
            failure = error  # raised outside of the group, which would wrap it
        finally:
            beside.cancel()
    raise failure
