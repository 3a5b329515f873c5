"""What the tasks of a write have brought to which replicas, and who has what another one lacks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ebla.model.errors import Unavailable
from ebla.model.identity import HostId, ShardNumber, TransferId
from ebla.model.token import TokenRange
from ebla.model.transfers import TransferTarget
from ebla.wire.table_calls import MissingCopy, StagedRanges, StagedRun, StagingPlan


@dataclass(frozen=True, slots=True)
class StagedByTask:
    """What a task has brought, and the transfers that lack some of it."""

    runs: tuple[StagedRun, ...] = ()
    lost: tuple[TransferId, ...] = ()


@dataclass(slots=True)
class StagedReplicas:
    """What is where, as far as it counts."""

    targets: dict[TransferId, TransferTarget]
    ranges: dict[TransferId, tuple[TokenRange, ...]]
    """What each of them has all rows of."""
    runs: list[StagedRun] = field(default_factory=list)

    @classmethod
    def from_plan(cls, plan: StagingPlan) -> "StagedReplicas":
        ranges: dict[TransferId, list[TokenRange]] = {target.transfer: [] for target in plan.targets}
        for route in plan.routes:
            for place in route.targets:
                ranges[plan.targets[place].transfer].append(route.range)
        targets = {target.transfer: target for target in plan.targets}
        return cls(targets, {transfer: tuple(found) for transfer, found in ranges.items()})

    def add(self, staged: StagedByTask) -> None:
        self.runs += staged.runs
        for transfer in staged.lost:
            self.drop(transfer)

    def drop(self, transfer: TransferId) -> None:
        """It lacks rows, so that nothing of it may count. The nodes find a replica without a place, and open one."""
        self.targets.pop(transfer, None)

    @property
    def counted(self) -> tuple[StagedRun, ...]:
        return tuple(run for run in self.runs if run.transfer in self.targets)

    @property
    def partial_ranges(self) -> tuple[StagedRanges, ...]:
        """Those that are for more than they were brought."""
        return tuple(
            StagedRanges(transfer, self.ranges[transfer])
            for transfer, target in self.targets.items()
            if self.ranges[transfer] != (target.range,)
        )


def check_every_range_staged(plan: StagingPlan, present: Mapping[TransferId, TransferTarget]) -> None:
    """Each task reaches some replica, and yet no replica may have the rows of all tasks, as where nodes were started
    anew one after another. Nothing would be named for such a range, and the nodes would take it for one that the job
    has no rows for: the job would be done, without them."""
    for route in plan.routes:
        if not any(plan.targets[target].transfer in present for target in route.targets):
            raise Unavailable(
                f"of each replica of the tokens {route.range.start} to {route.range.end} some task could not reach the "
                "node, so that none has all rows of the job",
                advice="run the job again when nodes do not come and go",
            )


# ---- replicas that lack rows


@dataclass(frozen=True, slots=True)
class LateTarget:
    """A place that was opened for rows of these ranges; of a table on vnodes there may be many."""

    target: TransferTarget
    ranges: tuple[TokenRange, ...]


def late_targets(lacking: Sequence[MissingCopy]) -> list[LateTarget]:
    """All ranges of a place together: it counts as a copy of each of them, or of none."""
    ranges: dict[TransferId, list[TokenRange]] = {}
    for copy in lacking:
        ranges.setdefault(copy.target.transfer, []).append(copy.range)
    targets = {copy.target.transfer: copy.target for copy in lacking}
    return [LateTarget(targets[transfer], tuple(found)) for transfer, found in ranges.items()]


def choose_copy_sources(
    plan: StagingPlan, present: Mapping[TransferId, TransferTarget], late: LateTarget
) -> dict[TransferId, list[int]]:
    """For each route that has a part of the ranges, whom to copy from: transfers, and the routes that each is for. The
    fewest that will do, as a rule, since a transfer that serves one route serves its neighbours."""
    chosen: dict[TransferId, list[int]] = {}
    for place, route in enumerate(plan.routes):
        if not any(route.range.overlaps(one) for one in late.ranges):
            continue
        offered = [plan.targets[target].transfer for target in route.targets]
        there = [one for one in offered if one in present and one != late.target.transfer]
        # Rather not from the place that it stands for: what was staged there may be gone, or broken.
        can = [one for one in there if _stack_of(present[one]) != _stack_of(late.target)] or there
        if not can:
            raise Unavailable(
                f"no replica that has the job's rows of {route.range.start} to {route.range.end} can be asked",
                advice="run the job again, with the same name",
            )
        transfer = next((one for one in can if one in chosen), can[0])
        chosen.setdefault(transfer, []).append(place)
    return chosen


def _stack_of(target: TransferTarget) -> tuple[HostId, ShardNumber, TokenRange]:
    return target.host, target.shard, target.range
