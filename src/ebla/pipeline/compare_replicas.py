"""Compares the replicas of a table by hashes of buckets, and repairs what differs.

Writes go on meanwhile, and the checkpoints of two replicas are not of the same instant: a row that is in one and not
yet in the other makes a bucket differ that does not. So buckets that differ are compared again, with new checkpoints,
in smaller buckets and after a growing pause, and count as different only if they differ each time. Replicas may move
meanwhile: each pass uses the newest version of the topology.
"""

import asyncio
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field

from ebla.aio.retry import Backoff
from ebla.model.identity import TableId
from ebla.model.records.jobs import Difference, JobResult
from ebla.model.token import TokenRange, covering_range, merge_ranges
from ebla.model.transfers import BucketDifference, ComparisonResult, ComparisonTask, TransferSource
from ebla.pipeline.job_plans import ComparePlan
from ebla.pipeline.job_scheduler import JobLimits
from ebla.ports.clock import Clock
from ebla.request.read_plan import gc_before_s
from ebla.transfers.token_ranges import ReplicaRange, replica_ranges
from ebla.transfers.transfer_run import RangeSources, RowCopy, TransferRun, TransferTotals, narrow_source

MICROSECONDS = 1_000_000
BUCKETS_PER_SUSPECT = 16
"""How many buckets each bucket that differs is cut into when it is compared again."""


PASSES = 4
"""How often a bucket must differ, each time in new checkpoints, to count as different."""
SUSPECT_RANGES_MAX = 64
"""Ranges of one `ReplicaRange` that are compared again. If more differ, all from the first to the last are."""
HEAL_RANGES_MAX = 8
"""The same for repair."""
DIFFERENCES_KEPT_MAX = 100


@dataclass(slots=True)
class ComparePass:
    """The findings of one pass."""

    ranges: int = 0
    rows: int = 0
    differing: list[BucketDifference] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Cut:
    range: TokenRange
    buckets_min: int
    """0: by the size of the data."""


class ReplicaComparison:
    def __init__(self, run: TransferRun, table: TableId, clock: Clock, limits: JobLimits) -> None:
        self._run = run
        self._table = table
        self._clock = clock
        self._limits = limits

    async def compare(self, plan: ComparePlan) -> JobResult:
        whole = await self._pass([_Cut(part.range, 0) for part in plan.ranges], "comparing")
        differing = await self._recheck(whole.differing)
        healed = TransferTotals()
        if plan.heal and differing:
            suspects = [one.range for one in differing]
            healed = await self._repair(suspects)
            after = await self._pass(self._smaller_cuts(suspects), "comparing what was healed")
            differing = await self._recheck([one for one in after.differing if _overlaps_any(one.range, suspects)])
        kept = differing[:DIFFERENCES_KEPT_MAX]
        return JobResult(
            bytes_moved=healed.size_bytes,
            rows=whole.rows,
            layers=healed.layers,
            ranges_compared=whole.ranges,
            differences=tuple(_difference(one) for one in kept),
            differences_total=len(differing),
            healed_rows=healed.rows,
        )

    # ---- one pass

    async def _pass(self, cuts: Sequence[_Cut], text: str) -> ComparePass:
        """Compares all replicas of each range. A range with a single replica is not compared."""
        run, found, size = self._run, ComparePass(), self._run.ranges_at_once_max
        for start in range(0, len(cuts), size):
            parts = [
                (part, cut.buckets_min)
                for cut in cuts[start : start + size]
                for part in self._replica_ranges(cut.range)
                if len(part.replicas) > 1
            ]
            if not parts:
                continue
            done = f" ({start} of {len(cuts)} ranges done)" if len(cuts) > size else ""
            run.meter.step(f"{text}{done}: taking checkpoints")
            # Before the first await: the table may be dropped meanwhile.
            gc_before = gc_before_s(run.view, self._table, self._clock.wall_us() // MICROSECONDS)
            wanted = [RangeSources(part.range, part.hosts) for part, _ in parts]
            sources = await run.take_checkpoints(self._table, wanted)
            tasks = []
            for part, buckets_min in parts:
                own = tuple(narrow_source(sources[host], part.range) for host in part.hosts)
                buckets = min(buckets_min or self._buckets(own, part.range), part.range.width)
                tasks.append(ComparisonTask(range=part.range, sources=own, buckets=buckets, gc_before_s=gc_before))
            run.meter.step(f"{text}{done}")
            results = await run.run_tasks(tasks)
            found.ranges += len(tasks)
            found.rows += sum(one.rows for one in results if isinstance(one, ComparisonResult))
            # The engine may report a bucket twice.
            by_range = {one.range: one for one in results if isinstance(one, BucketDifference)}
            found.differing += [by_range[each] for each in sorted(by_range)]
            await run.client.release(run.session, list(sources.values()), ())
        return found

    def _replica_ranges(self, part: TokenRange) -> list[ReplicaRange]:
        return list(replica_ranges(self._run.view.sets, self._table, part))

    def _buckets(self, sources: Sequence[TransferSource], part: TokenRange) -> int:
        """By the data of the largest replica in the range."""
        limits = self._limits
        largest = max((source.estimate_bytes(part) for source in sources), default=0)
        return max(limits.buckets_min, min(limits.buckets_max, largest // limits.bucket_bytes))

    # ---- further passes

    async def _recheck(self, differing: list[BucketDifference]) -> list[BucketDifference]:
        backoff = Backoff(first_s=self._limits.compare_pause_ms / 1000, max_s=float("inf"))
        for number in range(2, PASSES + 1):
            if not differing:
                break
            await asyncio.sleep(backoff.pause_s(number - 1))
            suspects = [one.range for one in differing]
            text = f"comparing {len(suspects)} ranges that differ again (pass {number} of {PASSES})"
            found = await self._pass(self._smaller_cuts(suspects), text)
            differing = [one for one in found.differing if _overlaps_any(one.range, suspects)]
        return differing

    def _smaller_cuts(self, suspects: Sequence[TokenRange]) -> list[_Cut]:
        """Adjacent suspects are joined, and cut into smaller buckets than before. So a replica that has lost
        everything, and differs in each bucket, is still compared in one go."""
        cuts = []
        for _, parts in self._by_replica_range(suspects):
            for whole in merge_ranges(parts, SUSPECT_RANGES_MAX):
                inside = sum(whole.covers(part) for part in parts)
                cuts.append(_Cut(whole, min(self._limits.buckets_max, inside * BUCKETS_PER_SUSPECT)))
        return cuts

    # ---- repair

    async def _repair(self, ranges: Sequence[TokenRange]) -> TransferTotals:
        """Each replica gets what it lacks of the others."""
        copies = [
            RowCopy(table=self._table, range=part, sources=whole.hosts, targets=whole.replicas)
            for whole, parts in self._by_replica_range(ranges)
            for part in merge_ranges(parts, HEAL_RANGES_MAX)
        ]
        return await self._run.copy_rows(copies, f"healing {len(copies)} ranges")

    def _by_replica_range(self, ranges: Sequence[TokenRange]) -> list[tuple[ReplicaRange, list[TokenRange]]]:
        """Each replica range of the newest version with the given ranges in it."""
        found: dict[TokenRange, tuple[ReplicaRange, list[TokenRange]]] = {}
        candidates = self._replica_ranges(covering_range(ranges))
        ends = [candidate.range.end for candidate in candidates]
        for each in ranges:
            number = bisect_left(ends, each.end)
            while number >= 0 and candidates[number].range.end > each.start:
                whole = candidates[number]
                part = TokenRange(max(whole.range.start, each.start), min(whole.range.end, each.end))
                found.setdefault(whole.range, (whole, []))[1].append(part)
                number -= 1
        return [found[each] for each in sorted(found)]


def _difference(found: BucketDifference) -> Difference:
    return Difference(found.range, tuple((host, digest.hex(), rows) for host, digest, rows in found.replicas))


def _overlaps_any(found: TokenRange, suspects: Sequence[TokenRange]) -> bool:
    """Whether it differed the last time too. `suspects` are in order and do not overlap."""
    position = bisect_left(suspects, found.end, key=lambda each: each.end)
    return any(found.overlaps(each) for each in suspects[max(0, position - 1) : position + 1])
