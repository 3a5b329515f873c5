"""Which replicas have which rows of a write, and which replica can supply rows that another one lacks."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ebla.model.errors import Unavailable
from ebla.model.identity import HostId, ShardNumber, TransferId
from ebla.model.token import TokenRange
from ebla.model.transfers import TransferTarget
from ebla.wire.table_calls import MissingCopy, StagedRanges, StagedRun, StagingPlan


@dataclass(slots=True)
class StagedReplicas:
    """The staged rows that count, by transfer: one transfer for each replica."""

    targets: dict[TransferId, TransferTarget]
    ranges: dict[TransferId, tuple[TokenRange, ...]]
    """Of which the replica has all rows."""
    runs: list[StagedRun] = field(default_factory=list)

    @classmethod
    def from_plan(cls, plan: StagingPlan) -> "StagedReplicas":
        ranges: dict[TransferId, list[TokenRange]] = {target.transfer: [] for target in plan.targets}
        for route in plan.routes:
            for place in route.targets:
                ranges[plan.targets[place].transfer].append(route.range)
        targets = {target.transfer: target for target in plan.targets}
        return cls(targets, {transfer: tuple(of_transfer) for transfer, of_transfer in ranges.items()})

    def add(self, runs: Iterable[StagedRun], lost: Iterable[TransferId]) -> None:
        """What a task has staged, and the transfers that lack some of its rows. Nothing of those may count: the nodes
        find a replica without a target, and open a new one."""
        self.runs += runs
        for transfer in lost:
            self.targets.pop(transfer, None)

    @property
    def counted(self) -> tuple[StagedRun, ...]:
        return tuple(run for run in self.runs if run.transfer in self.targets)

    @property
    def partial_ranges(self) -> tuple[StagedRanges, ...]:
        """Of transfers whose target covers more than was staged."""
        return tuple(
            StagedRanges(transfer, self.ranges[transfer])
            for transfer, target in self.targets.items()
            if self.ranges[transfer] != (target.range,)
        )


def check_every_range_staged(plan: StagingPlan, present: Mapping[TransferId, TransferTarget]) -> None:
    """Raises `Unavailable` where no replica of a range has the rows of all tasks.

    Each task reaches some replica, but not all tasks the same one, as when nodes restart one after another. The commit
    would name no run for such a range, the nodes would take it for a range without rows, and the job would end well
    without them."""
    for route in plan.routes:
        if not any(plan.targets[target].transfer in present for target in route.targets):
            raise Unavailable(
                f"no replica of the tokens {route.range.start} to {route.range.end} was reached by all tasks, so none "
                "has all rows of the job",
                advice="run the job again when nodes do not come and go",
            )


# ---- replicas that lack rows


@dataclass(frozen=True, slots=True)
class LateTarget:
    """A target that was opened during the commit, for rows of these ranges; with vnodes there may be many."""

    target: TransferTarget
    ranges: tuple[TokenRange, ...]


def late_targets(lacking: Sequence[MissingCopy]) -> list[LateTarget]:
    """All ranges of a target together: it counts as a copy of each of them, or of none."""
    ranges: dict[TransferId, list[TokenRange]] = {}
    for copy in lacking:
        ranges.setdefault(copy.target.transfer, []).append(copy.range)
    targets = {copy.target.transfer: copy.target for copy in lacking}
    return [LateTarget(targets[transfer], tuple(of_target)) for transfer, of_target in ranges.items()]


def choose_copy_sources(
    plan: StagingPlan, present: Mapping[TransferId, TransferTarget], late: LateTarget
) -> dict[TransferId, list[int]]:
    """The transfers to copy from, each with the routes it supplies; together they cover the routes of the ranges. Few
    transfers as a rule, since one that supplies a route also supplies its neighbours."""
    chosen: dict[TransferId, list[int]] = {}
    for place, route in enumerate(plan.routes):
        if not any(route.range.overlaps(lacking) for lacking in late.ranges):
            continue
        of_route = [plan.targets[target].transfer for target in route.targets]
        usable = [transfer for transfer in of_route if transfer in present and transfer != late.target.transfer]
        # Prefer other stacks than the one it replaces: what was staged there may be gone or damaged.
        preferred = [transfer for transfer in usable if _stack_of(present[transfer]) != _stack_of(late.target)]
        sources = preferred or usable
        if not sources:
            raise Unavailable(
                f"no replica that has the job's rows of {route.range.start} to {route.range.end} can be reached",
                advice="run the job again, with the same name",
            )
        transfer = next((source for source in sources if source in chosen), sources[0])
        chosen.setdefault(transfer, []).append(place)
    return chosen


def _stack_of(target: TransferTarget) -> tuple[HostId, ShardNumber, TokenRange]:
    return target.host, target.shard, target.range
