"""Whether the replicas of a table hold the same, and making it so.

Writes are under way while replicas are compared, and their checkpoints are not of one moment: a row that is in one and
not yet in another makes a bucket differ that does not. So what differs is looked at again, by fresh checkpoints, in
smaller buckets and after a growing pause, and is called different if it still is. Replicas may move meanwhile: each
look goes by the newest version of the topology.
"""

import asyncio
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field

from ebla.model.identity import HostId
from ebla.model.records.jobs import Difference, JobResult
from ebla.model.token import TokenRange
from ebla.model.transfers import BucketDifference, ComparisonResult, ComparisonTask, TransferSource
from ebla.pipeline.copy_steps import RowCopy, TransferTotals, copy_rows, narrow_source, take_checkpoints
from ebla.pipeline.job_plans import ComparePlan, ReplicaRange, merge_ranges, replica_ranges
from ebla.pipeline.job_run import JobRun, RunLimits
from ebla.request.read_plan import gc_before_s

MICROSECONDS = 1_000_000
BUCKETS_PER_SUSPECT = 16
"""What differs is looked at again in so many buckets for each that it was."""


@dataclass(slots=True)
class ComparePass:
    """What one look at some ranges has shown."""

    ranges: int = 0
    rows: int = 0
    differing: list[BucketDifference] = field(default_factory=list)


async def compare_replicas(run: JobRun, plan: ComparePlan) -> JobResult:
    whole = await _look(run, [(piece.range, 0) for piece in plan.pieces], "comparing")
    differing = await _look_again(run, whole.differing)
    healed = TransferTotals()
    if plan.heal and differing:
        healed = await _heal(run, [one.range for one in differing])
        healed_ranges = [one.range for one in differing]
        again = await _look(run, _cuts_of(run, healed_ranges), "comparing what was healed")
        differing = await _look_again(run, [one for one in again.differing if _meets(one.range, healed_ranges)])
    kept = differing[: run.parts.limits.differences_kept_max]
    return JobResult(
        bytes_moved=healed.size_bytes,
        rows=whole.rows,
        layers=healed.layers,
        ranges_compared=whole.ranges,
        differences=tuple(_as_told(one) for one in kept),
        differences_total=len(differing),
        healed_rows=healed.rows,
    )


def _as_told(found: BucketDifference) -> Difference:
    return Difference(found.range, tuple((host, digest.hex(), rows) for host, digest, rows in found.replicas))


# ---- one look

_Cut = tuple[TokenRange, int]
"""A range and into how many buckets it is cut at least; 0: by its size."""


async def _look(run: JobRun, cuts: Sequence[_Cut], words: str) -> ComparePass:
    """Every range on all its replicas. Those with a single replica are equal to themselves."""
    look, size = ComparePass(), run.parts.limits.pieces_at_once_max
    for start in range(0, len(cuts), size):
        group = cuts[start : start + size]
        pieces = [(piece, buckets) for part, buckets in group for piece in _pieces(run, part)]
        compared = [(piece, buckets) for piece, buckets in pieces if len(piece.replicas) > 1]
        if not compared:
            continue
        share = f" ({start} of {len(cuts)} ranges done)" if len(cuts) > size else ""
        run.meter.step(f"{words}{share}: taking checkpoints")
        # Before anything is waited for: afterwards the table may be gone.
        gc_before = gc_before_s(run.view, run.job.spec.table, run.parts.clock.wall_us() // MICROSECONDS)
        sources = await take_checkpoints(run, [(piece.range, _hosts(piece)) for piece, _ in compared])
        work = []
        for piece, buckets in compared:
            own = tuple(narrow_source(sources[host], piece.range) for host in _hosts(piece))
            count = min(buckets or _buckets(own, piece.range, run.parts.limits), piece.range.width)
            work.append(ComparisonTask(range=piece.range, sources=own, buckets=count, gc_before_s=gc_before))
        run.meter.step(f"{words}{share}")
        results = await run.run_on_engine(work)
        look.ranges += len(work)
        look.rows += sum(one.rows for one in results if isinstance(one, ComparisonResult))
        look.differing += _once_each([one for one in results if isinstance(one, BucketDifference)])
        await run.parts.steps.release(run.session, list(sources.values()), ())
    return look


def _once_each(differing: Sequence[BucketDifference]) -> list[BucketDifference]:
    """The engine may tell of one twice."""
    by_range = {one.range: one for one in differing}
    return [by_range[each] for each in sorted(by_range)]


def _pieces(run: JobRun, part: TokenRange) -> list[ReplicaRange]:
    return list(replica_ranges(run.view.sets, run.job.spec.table, part))


def _hosts(piece: ReplicaRange) -> tuple[HostId, ...]:
    return tuple(replica.host for replica in piece.replicas)


def _buckets(sources: Sequence[TransferSource], part: TokenRange, limits: RunLimits) -> int:
    """By what the largest replica has of the range; a stack that reaches beyond it counts by its share of tokens."""
    sizes = [
        sum(one.size_bytes * min(part.width, one.range.width) // one.range.width for one in source.parts)
        for source in sources
    ]
    return max(limits.buckets_min, min(limits.buckets_max, max(sizes, default=0) // limits.bucket_bytes))


# ---- again


async def _look_again(run: JobRun, differing: list[BucketDifference]) -> list[BucketDifference]:
    limits = run.parts.limits
    pause_ms = limits.compare_pause_ms
    for number in range(2, limits.compare_tries + 1):
        if not differing:
            break
        await asyncio.sleep(pause_ms / 1000)
        pause_ms *= 2
        suspects = [one.range for one in differing]
        words = f"looking again at {len(suspects)} ranges that differ (time {number} of {limits.compare_tries})"
        look = await _look(run, _cuts_of(run, suspects), words)
        differing = [one for one in look.differing if _meets(one.range, suspects)]
    return differing


def _cuts_of(run: JobRun, suspects: Sequence[TokenRange]) -> list[_Cut]:
    """Neighbours together, in smaller buckets than they were found in: a replica that has lost everything differs in
    each of its buckets, and is looked at in one go all the same."""
    limits = run.parts.limits
    cuts = []
    for _, parts in _by_piece(run, suspects):
        for whole in merge_ranges(parts, limits.suspect_ranges_max):
            inside = sum(whole.covers(part) for part in parts)
            cuts.append((whole, min(limits.buckets_max, inside * BUCKETS_PER_SUSPECT)))
    return cuts


def _meets(found: TokenRange, suspects: Sequence[TokenRange]) -> bool:
    """Whether it differed the last time too. `suspects` are in order and apart."""
    place = bisect_left(suspects, found.end, key=lambda each: each.end)
    return any(found.overlaps(each) for each in suspects[max(0, place - 1) : place + 1])


# ---- healing


async def _heal(run: JobRun, ranges: Sequence[TokenRange]) -> TransferTotals:
    """Every replica gets what it lacks of the others."""
    wanted = []
    for piece, parts in _by_piece(run, ranges):
        whole = merge_ranges(parts, run.parts.limits.heal_ranges_max)
        wanted += [RowCopy(part, _hosts(piece), piece.replicas) for part in whole]
    brought, size = TransferTotals(), run.parts.limits.pieces_at_once_max
    for start in range(0, len(wanted), size):
        brought += await copy_rows(run, wanted[start : start + size], f"healing {len(wanted)} ranges")
    return brought


def _by_piece(run: JobRun, ranges: Sequence[TokenRange]) -> list[tuple[ReplicaRange, list[TokenRange]]]:
    """Each piece of the table, as the newest version cuts it, with what differs of it."""
    found: dict[TokenRange, tuple[ReplicaRange, list[TokenRange]]] = {}
    everything = _pieces(run, TokenRange(min(each.start for each in ranges), max(each.end for each in ranges)))
    ends = [piece.range.end for piece in everything]
    for each in ranges:
        number = bisect_left(ends, each.end)
        while number >= 0 and everything[number].range.end > each.start:
            piece = everything[number]
            part = TokenRange(max(piece.range.start, each.start), min(piece.range.end, each.end))
            found.setdefault(piece.range, (piece, []))[1].append(part)
            number -= 1
    return [found[each] for each in sorted(found)]
