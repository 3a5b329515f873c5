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
from ebla.model.token import TokenRange
from ebla.model.transfers import Compared, Different, RangeToCompare, Source
from ebla.pipeline.moving import Brought, RowsWanted, checkpoints, move_rows, narrowed
from ebla.pipeline.plan_jobs import ComparePlan, Piece, joined, pieces_of
from ebla.pipeline.runs import Run, RunLimits
from ebla.request.read_plan import gc_before_s
from ebla.wire.jobs import Difference, JobResult

MICROSECONDS = 1_000_000
CUT = 16
"""What differs is looked at again in so many buckets for each that it was."""


@dataclass(slots=True)
class Look:
    """What one look at some ranges has shown."""

    ranges: int = 0
    rows: int = 0
    differing: list[Different] = field(default_factory=list)


async def compare(run: Run, plan: ComparePlan) -> JobResult:
    whole = await _look(run, [(piece.range, 0) for piece in plan.pieces], "comparing")
    differing = await _look_again(run, whole.differing)
    healed = Brought()
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


def _as_told(found: Different) -> Difference:
    return Difference(found.range, tuple((host, digest.hex(), rows) for host, digest, rows in found.replicas))


# ---- one look

_Cut = tuple[TokenRange, int]
"""A range and into how many buckets it is cut at least; 0: by its size."""


async def _look(run: Run, cuts: Sequence[_Cut], words: str) -> Look:
    """Every range on all its replicas. Those with a single replica are equal to themselves."""
    look, size = Look(), run.parts.limits.pieces_at_once_max
    for start in range(0, len(cuts), size):
        group = cuts[start : start + size]
        pieces = [(piece, buckets) for part, buckets in group for piece in _pieces(run, part)]
        compared = [(piece, buckets) for piece, buckets in pieces if len(piece.replicas) > 1]
        if not compared:
            continue
        share = f" ({start} of {len(cuts)} ranges done)" if len(cuts) > size else ""
        run.meter.step(f"{words}{share}: taking checkpoints")
        # Before anything is waited for: afterwards the table may be gone.
        gc_before = gc_before_s(run.view, run.job.wish.table, run.parts.clock.wall_us() // MICROSECONDS)
        sources = await checkpoints(run, [(piece.range, _hosts(piece)) for piece, _ in compared])
        work = []
        for piece, buckets in compared:
            own = tuple(narrowed(sources[host], piece.range) for host in _hosts(piece))
            count = min(buckets or _buckets(own, piece.range, run.parts.limits), piece.range.width)
            work.append(RangeToCompare(piece.range, own, count, gc_before))
        run.meter.step(f"{words}{share}")
        results = await run.on_engine(work)
        look.ranges += len(work)
        look.rows += sum(one.rows for one in results if isinstance(one, Compared))
        look.differing += _once_each([one for one in results if isinstance(one, Different)])
        await run.parts.steps.release(run.session, list(sources.values()), ())
    return look


def _once_each(differing: Sequence[Different]) -> list[Different]:
    """The engine may tell of one twice."""
    by_range = {one.range: one for one in differing}
    return [by_range[each] for each in sorted(by_range)]


def _pieces(run: Run, part: TokenRange) -> list[Piece]:
    return list(pieces_of(run.view.sets, run.job.wish.table, part))


def _hosts(piece: Piece) -> tuple[HostId, ...]:
    return tuple(replica.host for replica in piece.replicas)


def _buckets(sources: Sequence[Source], part: TokenRange, limits: RunLimits) -> int:
    """By what the largest replica has of the range; a stack that reaches beyond it counts by its share of tokens."""
    sizes = [
        sum(one.size_bytes * min(part.width, one.range.width) // one.range.width for one in source.parts)
        for source in sources
    ]
    return max(limits.buckets_min, min(limits.buckets_max, max(sizes, default=0) // limits.bucket_bytes))


# ---- again


async def _look_again(run: Run, differing: list[Different]) -> list[Different]:
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


def _cuts_of(run: Run, suspects: Sequence[TokenRange]) -> list[_Cut]:
    """Neighbours together, in smaller buckets than they were found in: a replica that has lost everything differs in
    each of its buckets, and is looked at in one go all the same."""
    limits = run.parts.limits
    cuts = []
    for _, parts in _by_piece(run, suspects):
        for whole in joined(parts, limits.suspect_ranges_max):
            inside = sum(whole.covers(part) for part in parts)
            cuts.append((whole, min(limits.buckets_max, inside * CUT)))
    return cuts


def _meets(found: TokenRange, suspects: Sequence[TokenRange]) -> bool:
    """Whether it differed the last time too. `suspects` are in order and apart."""
    place = bisect_left(suspects, found.end, key=lambda each: each.end)
    return any(found.overlaps(each) for each in suspects[max(0, place - 1) : place + 1])


# ---- healing


async def _heal(run: Run, ranges: Sequence[TokenRange]) -> Brought:
    """Every replica gets what it lacks of the others."""
    wanted = []
    for piece, parts in _by_piece(run, ranges):
        whole = joined(parts, run.parts.limits.heal_ranges_max)
        wanted += [RowsWanted(part, _hosts(piece), piece.replicas) for part in whole]
    brought, size = Brought(), run.parts.limits.pieces_at_once_max
    for start in range(0, len(wanted), size):
        brought += await move_rows(run, wanted[start : start + size], f"healing {len(wanted)} ranges")
    return brought


def _by_piece(run: Run, ranges: Sequence[TokenRange]) -> list[tuple[Piece, list[TokenRange]]]:
    """Each piece of the table, as the newest version cuts it, with what differs of it."""
    found: dict[TokenRange, tuple[Piece, list[TokenRange]]] = {}
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
