"""Copies files and rows between replicas under one session: open staging, take checkpoints, run tasks, seal, adopt.

The order matters. From the opening of its staging on, the target keeps its tombstones; only then is a checkpoint taken
anywhere. Otherwise: the target drops a tombstone; the checkpoint of the source still has the row below it; the copy
brings the row back to life.
"""

import asyncio
import enum
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import msgspec

from ebla.aio.bounded_gather import gather_bounded
from ebla.feed.topology_view import TopologyView, View
from ebla.model.errors import EblaError, InternalError, Stale
from ebla.model.identity import HostId, JobId, Replica, SessionId, TableId, TransferId
from ebla.model.records.jobs import JobProgress
from ebla.model.token import TokenRange, covering_range
from ebla.model.transfers import (
    CheckpointFile,
    FileMove,
    MoveResult,
    RowMove,
    RowPart,
    RowTarget,
    StagingKind,
    TransferResult,
    TransferSource,
    TransferTarget,
    TransferTask,
)
from ebla.ports.transfer_engine import TransferEngine
from ebla.transfers.token_ranges import format_range
from ebla.transfers.transfer_client import SealedAttempt, StagingSpec, TransferClient, TransferScope
from ebla.wire.transfer_messages import AdoptAnswer, OpenStagingAnswer

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TabletCopy:
    """The files of one replica of a tablet, to another replica."""

    range: TokenRange
    source: Replica
    target: Replica


@dataclass(frozen=True, slots=True)
class RangeSources:
    range: TokenRange
    hosts: tuple[HostId, ...]
    """Replicas of the range whose rows are merged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowCopy:
    """Rows of a range that lies in one stack on each of the targets, merged from all sources."""

    table: TableId
    range: TokenRange
    sources: tuple[HostId, ...]
    targets: tuple[Replica, ...]
    parts: tuple[RangeSources, ...] = ()
    """If only parts of the range are copied: ascending and disjoint, each with its own sources."""
    transfers: tuple[TransferId, ...] = ()
    """To each target, if the ids follow from what is copied: then a repeat finds what an earlier run has adopted.
    Empty: new ones."""

    @property
    def range_sources(self) -> tuple[RangeSources, ...]:
        return self.parts or (RangeSources(self.range, self.sources),)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferPlace:
    """What a step of a run was about."""

    table: TableId
    range: TokenRange
    host: HostId
    is_source: bool


class TransferStep(enum.StrEnum):
    """What has happened to a batch of copies, or is about to."""

    OPENED = "opened"
    CHECKPOINTED = "checkpointed"
    BEFORE_SEAL = "before_seal"
    BEFORE_ADOPT = "before_adopt"


class TransferObserver:
    """Follows a run of row copies. This one ignores everything."""

    async def reach(self, step: TransferStep) -> None:
        """The run continues when it returns."""

    def copied(self, copies: "Sequence[RowCopy]", totals: TransferTotals) -> None:
        """Everything of them is adopted."""

    def failed(self, place: TransferPlace, error: EblaError) -> None:
        """The error is raised after this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _RowStaging:
    copy: RowCopy
    replica: Replica
    opened: OpenStagingAnswer

    @property
    def target(self) -> TransferTarget:
        return self.opened.target

    @property
    def must_move(self) -> bool:
        return not self.opened.is_done and not self.opened.is_sealed

    @property
    def place(self) -> TransferPlace:
        return TransferPlace(table=self.copy.table, range=self.copy.range, host=self.replica.host, is_source=False)


@dataclass(frozen=True, slots=True)
class _RowJob:
    """Copies that one job of the engine moves; what earlier runs have moved of them is only adopted."""

    copies: list[RowCopy] = field(default_factory=list)
    stagings: list[_RowStaging] = field(default_factory=list)
    moves: list[RowMove] = field(default_factory=list)


ROW_JOBS_AT_ONCE = 2
"""One moves rows while the other is sealed and adopted."""

LayerRanges = tuple[TokenRange, ...]
"""The range to take of each layer of a part, as the source has them: the files may hold more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferRun:
    job: JobId
    session: SessionId
    client: TransferClient
    engine: TransferEngine
    topology: TopologyView
    meter: ProgressMeter
    poll_ms: int = 1_000
    """How often progress is polled while tasks run."""
    ranges_at_once_max: int = 64
    """Copies with checkpoints and staging at the same time."""
    job_bytes_max: int = 0
    """About how many bytes of rows one job of the engine moves; 0: no limit. If the run ends early, what its jobs in
    progress have moved is moved again."""
    observer: TransferObserver = field(default_factory=TransferObserver)

    @property
    def view(self) -> View:
        return self.topology.current

    def scope(self, table: TableId) -> TransferScope:
        """With the newest version: a run may outlive the version that it began with."""
        return TransferScope(job=self.job, session=self.session, table=table, version=self.view.version)

    # ---- files

    async def copy_files(self, table: TableId, copies: Sequence[TabletCopy], *, use_links: bool) -> TransferTotals:
        """All copies are from one host to one host."""
        self.meter.step("opening the target")
        opened = await self._open_file_targets(table, copies)
        self.meter.step("taking a checkpoint")
        one_shard = copies[0].source if len(copies) == 1 else None
        covered = covering_range([copy.range for copy in copies])
        source = await self.client.take_checkpoint(self.scope(table), copies[0].source.host, covered, one_shard)
        moves = [
            FileMove(source, part, target)
            for copy, target in zip(copies, opened)
            if (part := _part_of(source, copy)) is not None
        ]
        await self._check_room(table, moves)
        totals = TransferTotals()
        if moves:
            moves = moves if use_links else [_without_links(move) for move in moves]
            targets = [move.target for move in moves]
            self.meter.expect(sum(move.size_bytes for move in moves))
            self.meter.step("copying files")
            results = _complete_attempts(moves, await self.run_tasks(moves, targets))
            self.meter.step("sealing and adopting")
            attempts = _attempts_at(targets, results)
            layers = {move.target.transfer: _layer_ranges(move) for move in moves}
            adopted = await self.client.all(
                [
                    partial(self._adopt_files, table, target, attempts[target.transfer], layers[target.transfer])
                    for target in targets
                ]
            )
            totals = sum(adopted, TransferTotals())
            self.meter.moved(totals.size_bytes)
        await self.client.release(self.session, [source], opened)
        return totals

    async def _open_file_targets(self, table: TableId, copies: Sequence[TabletCopy]) -> list[TransferTarget]:
        scope = self.scope(table)
        stagings = [
            StagingSpec(
                replica=copy.target, range=copy.range, kind=StagingKind.FILES, transfer=self.client.new_transfer()
            )
            for copy in copies
        ]
        return await self.client.all([partial(self.client.open_staging, scope, staging) for staging in stagings])

    async def _check_room(self, table: TableId, moves: Sequence[FileMove]) -> None:
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
        scope = self.scope(table)
        await self.client.all([partial(self.client.open_staging, scope, staging) for staging in stagings])

    async def _adopt_files(
        self, table: TableId, target: TransferTarget, attempts: Sequence[MoveResult], layers: LayerRanges
    ) -> TransferTotals:
        winner = await self._seal(target, attempts, layers)
        return TransferTotals() if winner is None else _totals(winner, await self.client.adopt(table, target))

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
        stagings = await self._open_row_targets(copies)
        await self.observer.reach(TransferStep.OPENED)
        moving = [staging for staging in stagings if staging.must_move]
        self.meter.step(f"{text}: taking checkpoints")
        sources = await self._take_row_checkpoints([staging.copy for staging in moving])
        await self.observer.reach(TransferStep.CHECKPOINTED)
        jobs = self._row_jobs(copies, stagings, sources)
        self.meter.expect(sum(_expected_bytes(move) for job in jobs for move in job.moves))
        self.meter.step(text)
        adopted: dict[TransferId, TransferTotals] = {}
        await run_beside(
            gather_bounded([partial(self._run_row_job, job, adopted) for job in jobs], ROW_JOBS_AT_ONCE),
            self._poll_progress([staging.target for staging in moving], adopted),
        )
        await self.client.release(self.session, list(sources.values()), ())
        totals = sum(adopted.values(), TransferTotals())
        self.meter.moved(totals.size_bytes)
        return totals

    def _row_jobs(
        self,
        copies: Sequence[RowCopy],
        stagings: Sequence[_RowStaging],
        sources: Mapping[tuple[TableId, HostId], TransferSource],
    ) -> list[_RowJob]:
        """Of about `job_bytes_max` each. The stagings are in the order of the copies and their targets."""
        remaining = iter(stagings)
        jobs, size_bytes = [_RowJob()], 0
        for copy in copies:
            own = [next(remaining) for _ in copy.targets]
            moving = [staging for staging in own if staging.must_move]
            moves = [self._row_move(copy, moving, sources)] if moving else []
            move_bytes = sum(_expected_bytes(move) for move in moves)
            if self.job_bytes_max and size_bytes and size_bytes + move_bytes > self.job_bytes_max:
                jobs.append(_RowJob())
                size_bytes = 0
            size_bytes += move_bytes
            jobs[-1].copies.append(copy)
            jobs[-1].stagings.extend(own)
            jobs[-1].moves.extend(moves)
        return jobs

    async def _run_row_job(self, job: _RowJob, adopted: dict[TransferId, TransferTotals]) -> None:
        results = await self.engine.run(self.job, job.moves) if job.moves else ()
        targets = [staging.target for staging in job.stagings if staging.must_move]
        totals = await self._seal_and_adopt(job.stagings, _attempts_at(targets, results))
        adopted |= totals
        self.observer.copied(job.copies, sum(totals.values(), TransferTotals()))
        # One that was done before has been released.
        left = [staging.target for staging in job.stagings if not staging.opened.is_done]
        await self.client.release(self.session, (), left)

    def _row_move(
        self,
        copy: RowCopy,
        stagings: Sequence[_RowStaging],
        sources: Mapping[tuple[TableId, HostId], TransferSource],
    ) -> RowMove:
        own = {host: number for number, host in enumerate(copy.sources)}
        return RowMove(
            range=copy.range,
            sources=tuple(narrow_source(sources[copy.table, host], copy.range) for host in copy.sources),
            targets=tuple(RowTarget(staging.target, own.get(staging.replica.host)) for staging in stagings),
            schema=self.view.schemas.get(copy.table),
            parts=tuple(RowPart(part.range, tuple(own[host] for host in part.hosts)) for part in copy.parts),
        )

    async def _take_row_checkpoints(self, copies: Sequence[RowCopy]) -> Mapping[tuple[TableId, HostId], TransferSource]:
        wanted: dict[TableId, list[RangeSources]] = {}
        for copy in copies:
            wanted.setdefault(copy.table, []).extend(copy.range_sources)
        taken = await self.client.all([partial(self.take_checkpoints, table, parts) for table, parts in wanted.items()])
        return {(table, host): source for table, found in zip(wanted, taken) for host, source in found.items()}

    async def take_checkpoints(self, table: TableId, wanted: Sequence[RangeSources]) -> Mapping[HostId, TransferSource]:
        """One checkpoint on each host, over all ranges wanted of it, all at about the same time."""
        ranges: dict[HostId, list[TokenRange]] = {}
        for part in wanted:
            for host in part.hosts:
                ranges.setdefault(host, []).append(part.range)
        covered = {host: covering_range(parts) for host, parts in ranges.items()}
        scope = self.scope(table)
        taken = await self.client.all(
            [
                partial(
                    self._observed,
                    TransferPlace(table=table, range=part, host=host, is_source=True),
                    partial(self.client.take_checkpoint, scope, host, part),
                )
                for host, part in covered.items()
            ]
        )
        return dict(zip(covered, taken))

    # ---- tasks

    async def run_tasks(
        self, tasks: Sequence[TransferTask], targets: Collection[TransferTarget] = ()
    ) -> Sequence[TransferResult]:
        """Runs them on the engine and reports progress meanwhile."""
        return await run_beside(self.engine.run(self.job, tasks), self._poll_progress(targets, {}))

    async def _poll_progress(
        self, targets: Collection[TransferTarget], adopted: Mapping[TransferId, TransferTotals]
    ) -> None:
        transfers: dict[HostId, list[TransferId]] = {}
        for target in targets:
            transfers.setdefault(target.host, []).append(target.transfer)
        while True:
            await asyncio.sleep(self.poll_ms / 1000)
            counts = self.engine.tasks(self.job)
            self.meter.tasks(counts.done, counts.total)
            received = 0
            for host, own in transfers.items():
                stagings = await self.client.stagings(host, self.session)
                coming = [one for one in stagings if one.transfer in own and one.transfer not in adopted]
                received += sum(staging.received_bytes for staging in coming)
            self.meter.moved(received + sum(one.size_bytes for one in adopted.values()))

    # ---- stage, seal, adopt

    async def _open_row_targets(self, copies: Sequence[RowCopy]) -> list[_RowStaging]:
        return await self.client.all(
            [
                partial(self._open_row_target, copy, replica, copy.transfers[number] if copy.transfers else None)
                for copy in copies
                for number, replica in enumerate(copy.targets)
            ]
        )

    async def _open_row_target(self, copy: RowCopy, replica: Replica, transfer: TransferId | None) -> _RowStaging:
        scope = self.scope(copy.table)
        staging = StagingSpec(
            replica=replica, range=copy.range, kind=StagingKind.ROWS, transfer=transfer or self.client.new_transfer()
        )
        if transfer is None:
            return _RowStaging(
                copy=copy, replica=replica, opened=OpenStagingAnswer(await self.client.open_staging(scope, staging))
            )
        place = TransferPlace(table=copy.table, range=copy.range, host=replica.host, is_source=False)
        opened = await self._observed(place, partial(self.client.reopen_staging, scope, staging))
        return _RowStaging(copy=copy, replica=replica, opened=opened)

    async def _seal_and_adopt(
        self, stagings: Sequence[_RowStaging], attempts: Mapping[TransferId, Sequence[MoveResult]]
    ) -> dict[TransferId, TransferTotals]:
        await self.observer.reach(TransferStep.BEFORE_SEAL)
        moved = [staging for staging in stagings if staging.must_move]
        winners = await self.client.all(
            [
                partial(self._observed, one.place, partial(self._seal, one.target, attempts[one.target.transfer], ()))
                for one in moved
            ]
        )
        sealed: list[tuple[_RowStaging, MoveResult | None]] = [
            *((staging, winner) for staging, winner in zip(moved, winners) if winner is not None),
            *((staging, None) for staging in stagings if staging.opened.is_sealed),
        ]
        await self.observer.reach(TransferStep.BEFORE_ADOPT)
        adopted = await self.client.all(
            [
                partial(self._observed, one.place, partial(self.client.adopt, one.copy.table, one.target))
                for one, _ in sealed
            ]
        )
        return {one.target.transfer: _totals(winner, answer) for (one, winner), answer in zip(sealed, adopted)}

    async def _observed(self, place: TransferPlace, call: Callable[[], Awaitable[T]]) -> T:
        try:
            return await call()
        except EblaError as error:
            self.observer.failed(place, error)
            raise

    async def _seal(
        self, target: TransferTarget, attempts: Sequence[MoveResult], layers: LayerRanges
    ) -> MoveResult | None:
        """The attempt that counts; None: there is nothing to adopt."""
        if not attempts:
            raise InternalError(f"the engine reports no complete attempt of transfer {target.transfer}")
        if not any(attempt.files for attempt in attempts):
            return None  # the target lacked nothing
        return await self._seal_first(target, [attempt for attempt in attempts if attempt.files], layers)

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


def _attempts_at(
    targets: Sequence[TransferTarget], results: Sequence[TransferResult]
) -> Mapping[TransferId, Sequence[MoveResult]]:
    attempts: dict[TransferId, list[MoveResult]] = {target.transfer: [] for target in targets}
    for result in results:
        if isinstance(result, MoveResult) and result.transfer in attempts:
            attempts[result.transfer].append(result)
    return attempts


def _totals(winner: MoveResult | None, adopted: AdoptAnswer) -> TransferTotals:
    """Without a winner it was sealed by an earlier run, which has moved it."""
    if winner is None:
        return TransferTotals(layers=adopted.layers)
    return TransferTotals(
        size_bytes=winner.size_bytes, rows=winner.rows, layers=adopted.layers, short_cut=winner.short_cut
    )


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


def _expected_bytes(move: RowMove) -> int:
    """About. How much a target lacks that has some of the rows is not known."""
    if any(to.own is not None for to in move.targets):
        return 0
    return sum(
        max(move.sources[source].estimate_bytes(part.range) for source in part.sources) for part in move.row_parts
    )


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
