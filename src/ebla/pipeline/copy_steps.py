"""Moves of files and of rows: staging opened, checkpoints taken, the engine run, what it brought sealed and adopted.

The order is what counts. The target holds its tombstones, from the opening of its staging on, before a checkpoint is
taken anywhere: a tombstone that it dropped in between would be missing under a row that the checkpoint still has.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import msgspec

from ebla.model.errors import EblaError, InternalError, Stale
from ebla.model.identity import HostId, Replica, TransferId
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
)
from ebla.pipeline.job_plans import FileCopyPlan, TabletCopy, covering_range, format_range
from ebla.pipeline.job_run import JobRun
from ebla.transfers.task_bundles import file_move_bytes
from ebla.transfers.transfer_client import TransferClient, TransferScope


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferTotals:
    """What moves have brought into stacks."""

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


@dataclass(frozen=True, slots=True)
class RowCopy:
    """Rows of a range that lies in one stack on each of the targets."""

    range: TokenRange
    sources: tuple[HostId, ...]
    targets: tuple[Replica, ...]


async def copy_files(run: JobRun, plan: FileCopyPlan, *, short_cut: bool) -> TransferTotals:
    """The source's stacks become parts of the target's."""
    steps, scope, copies = run.parts.steps, run.scope, plan.copies
    run.meter.step("opening the target")
    places = await steps.all(
        [partial(steps.open_staging, scope, one.target, StagingKind.FILES, one.range) for one in copies]
    )
    run.meter.step("taking a checkpoint")
    alone = copies[0].source if len(copies) == 1 else None
    source = await steps.take_checkpoint(
        scope, copies[0].source.host, covering_range([one.range for one in copies]), alone
    )
    moves = [
        FileMove(source, number, place)
        for one, place in zip(copies, places)
        if (number := _part_of(source, one)) is not None
    ]
    await _ask_for_room(run, moves)
    brought = TransferTotals()
    if moves:
        moves = [_without_short_cut(move) for move in moves] if not short_cut else moves
        targets = [move.target for move in moves]
        run.meter.expect(sum(source.parts[move.part].size_bytes for move in moves))
        run.meter.step("copying files")
        results = _whole(moves, await run.run_on_engine(moves, targets))
        ranges = {move.target.transfer: _layer_ranges(move) for move in moves}
        brought = await _settle(run, targets, results, ranges)
        run.meter.moved(brought.size_bytes)
    await steps.release(run.session, [source], places)
    return brought


def _part_of(source: TransferSource, copy: TabletCopy) -> int | None:
    """None: the tablet has no row there. Raises `Stale` where it is not the tablet that was planned for any more: it
    was split or merged, or went to another shard, and to bring nothing would look like success."""
    for number, part in enumerate(source.parts):
        if part.shard == copy.source.shard and part.range == copy.range:
            return number if part.layers else None
    other = next((part for part in source.parts if part.range.overlaps(copy.range)), None)
    if other is not None:
        raise Stale(f"the source has {format_range(other.range)} at shard {other.shard} by now", advice="plan again")
    return None


async def _ask_for_room(run: JobRun, moves: Sequence[FileMove]) -> None:
    """Each node once more for the largest that goes there, now that sizes are known: a disk without room for it says so
    before it is full. Not for their sum: those that are linked take none."""
    largest: dict[HostId, FileMove] = {}
    for move in moves:
        known = largest.get(move.target.host)
        if known is None or file_move_bytes(move) > file_move_bytes(known):
            largest[move.target.host] = move
    steps, scope = run.parts.steps, run.scope
    await steps.all([partial(_open_again, steps, scope, move) for move in largest.values()])


async def _open_again(steps: TransferClient, scope: TransferScope, move: FileMove) -> None:
    target = move.target
    place = Replica(target.host, target.shard)
    await steps.open_staging(scope, place, target.kind, target.range, (target, file_move_bytes(move)))


def _without_short_cut(move: FileMove) -> FileMove:
    """Who is not told which machine a folder is on takes himself to be on another."""
    source = msgspec.structs.replace(move.source, machine="", folder="")
    target = msgspec.structs.replace(move.target, machine="", folder="")
    return msgspec.structs.replace(move, source=source, target=target)


async def copy_rows(run: JobRun, wanted: Sequence[RowCopy], words: str) -> TransferTotals:
    """Cells merged from all sources, to the targets that lack them. A target that is a source gets what it lacks."""
    steps, scope = run.parts.steps, run.scope
    run.meter.step(f"{words}: opening the targets")
    places = [(one.range, target) for one in wanted for target in one.targets]
    targets = await steps.all(
        [partial(steps.open_staging, scope, place, StagingKind.ROWS, part) for part, place in places]
    )
    run.meter.step(f"{words}: taking checkpoints")
    sources = await take_checkpoints(run, [(one.range, one.sources) for one in wanted])
    schema = run.view.schemas.get(scope.table)
    moves: list[RowMove] = []
    remaining = iter(targets)
    for one in wanted:
        own = {host: number for number, host in enumerate(one.sources)}
        row_targets = tuple(RowTarget(next(remaining), own.get(place.host)) for place in one.targets)
        parts = tuple(narrow_source(sources[host], one.range) for host in one.sources)
        moves.append(RowMove(range=one.range, sources=parts, targets=row_targets, schema=schema))
    run.meter.expect(0)  # how much is lacking nobody knows
    run.meter.step(words)
    results = await run.run_on_engine(moves, targets)
    brought = await _settle(run, targets, results, {})
    await steps.release(run.session, list(sources.values()), targets)
    return brought


async def take_checkpoints(
    run: JobRun, wanted: Sequence[tuple[TokenRange, tuple[HostId, ...]]]
) -> Mapping[HostId, TransferSource]:
    """One on each host, over all that is wanted of it, at about the same time."""
    ranges: dict[HostId, list[TokenRange]] = {}
    for part, hosts in wanted:
        for host in hosts:
            ranges.setdefault(host, []).append(part)
    steps, scope = run.parts.steps, run.scope
    taken = await steps.all(
        [partial(steps.take_checkpoint, scope, host, covering_range(parts), None) for host, parts in ranges.items()]
    )
    return dict(zip(ranges, taken))


def narrow_source(source: TransferSource, part: TokenRange) -> TransferSource:
    """With the stacks that have something of the range alone: whoever asks for rows names the range, and a descriptor
    of each of a thousand ranges must not list the files of all."""
    return msgspec.structs.replace(source, parts=tuple(one for one in source.parts if one.range.overlaps(part)))


# ---- what was brought


LayerRanges = tuple[TokenRange, ...]


def _layer_ranges(move: FileMove) -> LayerRanges:
    """As its source has them: the files may hold more."""
    return tuple(layer.range for layer in move.source.parts[move.part].layers)


def _whole(moves: Sequence[FileMove], results: Sequence[TransferResult]) -> list[TransferResult]:
    """INV-XFER-2: attempts that tell of every file of their source's part, in its size, and where they linked one, of
    that very one. The seal knows what it is told alone: a file that nobody tells of would not be missed there."""
    wanted = {move.target.transfer: _files_of(move) for move in moves}
    return [one for one in results if isinstance(one, MoveResult) and _is_all(one, wanted.get(one.transfer, {}))]


def _files_of(move: FileMove) -> dict[str, CheckpointFile]:
    layers = move.source.parts[move.part].layers
    return {f"{place}/{file.name}": file for place, layer in enumerate(layers) for file in layer.files}


def _is_all(attempt: MoveResult, wanted: Mapping[str, CheckpointFile]) -> bool:
    told = {file.name: file for file in attempt.files}
    return told.keys() == wanted.keys() and all(
        told[name].size_bytes == file.size_bytes and told[name].inode in (0, file.inode)
        for name, file in wanted.items()
    )


async def _settle(
    run: JobRun,
    targets: Sequence[TransferTarget],
    results: Sequence[TransferResult],
    ranges: Mapping[TransferId, LayerRanges],
) -> TransferTotals:
    run.meter.step("sealing and adopting")
    attempts: dict[TransferId, list[MoveResult]] = {target.transfer: [] for target in targets}
    for result in results:
        if isinstance(result, MoveResult) and result.transfer in attempts:
            attempts[result.transfer].append(result)
    settled = await run.parts.steps.all(
        [
            partial(_settle_one, run, target, attempts[target.transfer], ranges.get(target.transfer, ()))
            for target in targets
        ]
    )
    return sum(settled, TransferTotals())


async def _settle_one(
    run: JobRun, target: TransferTarget, attempts: Sequence[MoveResult], ranges: LayerRanges
) -> TransferTotals:
    if not attempts:
        raise InternalError(f"the engine tells of no whole attempt at transfer {target.transfer}")
    if not any(attempt.files for attempt in attempts):
        return TransferTotals()  # nothing was lacking
    winner = await _seal(run, target, [attempt for attempt in attempts if attempt.files], ranges)
    adopted = await run.parts.steps.adopt(run.scope, target)
    return TransferTotals(
        size_bytes=winner.size_bytes, rows=winner.rows, layers=adopted.layers, short_cut=winner.short_cut
    )


async def _seal(run: JobRun, target: TransferTarget, attempts: Sequence[MoveResult], ranges: LayerRanges) -> MoveResult:
    """The first that is whole. An attempt that a later one overtook may have left less than it told."""
    failure: EblaError | None = None
    for attempt in attempts:
        try:
            await run.parts.steps.seal(target, attempt, ranges)
        except EblaError as error:
            if error.is_transient:
                raise
            failure = failure or error
        else:
            return attempt
    assert failure is not None
    raise failure
