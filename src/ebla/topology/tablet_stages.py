"""The stages of a tablet's transition, as a table.

A row says which replicas requests read and write, what the coordinator does, and which stage is next. Within a stage
the order is fixed: the barrier, if there is one, then the action, then one commit that leaves the stage. That commit
closes the session of the stage it leaves and opens the one of the stage it enters.

`tests/properties/test_quorums_meet.py` walks this table and shows that no acknowledged write is missed by a reader:
every selector and every barrier before `end_migration` and `revert_migration` is needed for that.
"""

import enum
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from ebla.model.identity import HostId
from ebla.topology.states import TabletStage, TransitionKind
from ebla.topology.tablet_map import ReplicaSet, TabletTransition

FIRST_STAGE = TabletStage.ALLOW_WRITE_BOTH_READ_OLD
"""The first stage of every transition."""


class Selector(enum.StrEnum):
    """Which replicas a request uses: those from before the change, those from after it, or both."""

    PREVIOUS = "previous"
    BOTH = "both"
    NEXT = "next"


class StageAction(enum.StrEnum):
    """The action after the barrier, before the stage may be left."""

    NONE = "none"
    COPY_FILES = "copy_files"
    """Copy exactly what the leaving replica has to the pending one."""
    LINK_FILES = "link_files"
    """The same inside a node, from one shard's folder into another's."""
    MERGE_ROWS = "merge_rows"
    """Merge what all remaining replicas have into the pending one."""
    CLEAN_LEAVING = "clean_leaving"
    CLEAN_PENDING = "clean_pending"


class Ending(enum.StrEnum):
    """What the commit that leaves the last stage does to the tablet besides ending its transition."""

    REPLICAS_BECOME_NEXT = "replicas_become_next"
    REPLICAS_STAY = "replicas_stay"


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRow:
    stage: TabletStage
    reads: Selector
    writes: Selector
    barrier: bool = False
    """Every node that is not ignored must acknowledge this stage before it is acted on or left."""
    action: StageAction = StageAction.NONE
    session: bool = False
    """Runs under a session of its own, opened by the commit that enters it and closed by the one that leaves it."""
    next: TabletStage | None = None
    """None: the transition ends, as `ending` says."""
    back: TabletStage | None = None
    """The stage after a failure once a replica it needs is given up; None: the stage is repeated until it succeeds."""
    back_if_next_lost_more: bool = False
    """A choice: go back if more replicas of the next set than of the previous one are given up; otherwise go to `next`,
    which still needs the barrier of the remaining nodes."""
    ending: Ending | None = None
    promise: str
    """What is true of the whole cluster once this stage is committed."""


_S = TabletStage
_OLD, _BOTH, _NEW = Selector.PREVIOUS, Selector.BOTH, Selector.NEXT

_PROMISES: Mapping[TabletStage, str] = MappingProxyType(
    {
        _S.ALLOW_WRITE_BOTH_READ_OLD: (
            "the transition is recorded; the pending replica may be opened, and nobody uses it yet"
        ),
        _S.WRITE_BOTH_READ_OLD: "every node knows the transition, and the pending replica is open for writes",
        _S.STREAMING: (
            "a write that succeeds from now on reaches its consistency level in both sets, "
            "so what streaming may miss the pending replica has been sent"
        ),
        _S.WRITE_BOTH_READ_NEW: "the pending replica has every write its source had, and nothing streams any more",
        _S.WRITE_BOTH_READ_OLD_FALLBACK_CLEANUP: (
            "the change is given up; both sets still have every acknowledged write, whichever of them is read"
        ),
        _S.USE_NEW: "a read that starts from now on and succeeds uses the next set",
        _S.CLEANUP: "no request reaches the leaving replica any more, so what it holds may go",
        _S.END_MIGRATION: (
            "the leaving replica is empty (INV-TABL-1); once its barrier is passed no late clean-up can run"
        ),
        _S.CLEANUP_TARGET: (
            "the change is given up and no reader uses the pending replica; "
            "once the barrier is passed no writer does either"
        ),
        _S.REVERT_MIGRATION: (
            "the pending replica is empty (INV-TABL-1); once its barrier is passed no late clean-up can run"
        ),
    }
)


def _row(stage: TabletStage, reads: Selector, writes: Selector, **columns: Any) -> StageRow:
    return StageRow(stage=stage, reads=reads, writes=writes, promise=_PROMISES[stage], **columns)


_MIGRATION = (
    _row(_S.ALLOW_WRITE_BOTH_READ_OLD, _OLD, _OLD, barrier=True, next=_S.WRITE_BOTH_READ_OLD, back=_S.CLEANUP_TARGET),
    _row(_S.WRITE_BOTH_READ_OLD, _OLD, _BOTH, barrier=True, next=_S.STREAMING, back=_S.CLEANUP_TARGET),
    _row(
        _S.STREAMING,
        _OLD,
        _BOTH,
        action=StageAction.COPY_FILES,
        session=True,
        next=_S.WRITE_BOTH_READ_NEW,
        back=_S.CLEANUP_TARGET,
    ),
    _row(
        _S.WRITE_BOTH_READ_NEW,
        _NEW,
        _BOTH,
        barrier=True,
        next=_S.USE_NEW,
        back=_S.WRITE_BOTH_READ_OLD_FALLBACK_CLEANUP,
        back_if_next_lost_more=True,
    ),
    _row(_S.WRITE_BOTH_READ_OLD_FALLBACK_CLEANUP, _OLD, _BOTH, barrier=True, next=_S.CLEANUP_TARGET),
    _row(_S.USE_NEW, _NEW, _NEW, barrier=True, next=_S.CLEANUP),
    _row(_S.CLEANUP, _NEW, _NEW, action=StageAction.CLEAN_LEAVING, session=True, next=_S.END_MIGRATION),
    _row(_S.END_MIGRATION, _NEW, _NEW, barrier=True, ending=Ending.REPLICAS_BECOME_NEXT),
    _row(
        _S.CLEANUP_TARGET,
        _OLD,
        _OLD,
        barrier=True,
        action=StageAction.CLEAN_PENDING,
        session=True,
        next=_S.REVERT_MIGRATION,
    ),
    _row(_S.REVERT_MIGRATION, _OLD, _OLD, barrier=True, ending=Ending.REPLICAS_STAY),
)


def _streaming_by(action: StageAction) -> tuple[StageRow, ...]:
    return tuple(replace(row, action=action) if row.stage is TabletStage.STREAMING else row for row in _MIGRATION)


def _without_way_back(rows: tuple[StageRow, ...]) -> tuple[StageRow, ...]:
    """Within one node both replicas are given up together, so going back is never chosen."""
    there = replace(_find(rows, TabletStage.WRITE_BOTH_READ_NEW), back=None, back_if_next_lost_more=False)
    return tuple(
        there if row.stage is there.stage else row
        for row in rows
        if row.stage is not TabletStage.WRITE_BOTH_READ_OLD_FALLBACK_CLEANUP
    )


def _find(rows: tuple[StageRow, ...], stage: TabletStage) -> StageRow:
    return next(row for row in rows if row.stage is stage)


_ROWS_OF_KIND = {
    TransitionKind.MIGRATION: _MIGRATION,
    TransitionKind.INTRANODE_MIGRATION: _without_way_back(_streaming_by(StageAction.LINK_FILES)),
    TransitionKind.REBUILD: _streaming_by(StageAction.MERGE_ROWS),
}

STAGES: Mapping[tuple[TransitionKind, TabletStage], StageRow] = MappingProxyType(
    {(kind, row.stage): row for kind, rows in _ROWS_OF_KIND.items() for row in rows}
)

UNUSED_STAGES: Mapping[tuple[TransitionKind, TabletStage], str] = MappingProxyType(
    {
        (TransitionKind.INTRANODE_MIGRATION, TabletStage.WRITE_BOTH_READ_OLD_FALLBACK_CLEANUP): (
            "the leaving and the pending replica are on one node and are given up together"
        ),
    }
)
"""Pairs without a row, and why."""


class EdgeCause(enum.StrEnum):
    STARTED = "started"
    DONE = "done"
    FAILED = "failed"
    CHOSE_FORWARD = "chose_forward"
    CHOSE_BACK = "chose_back"


@dataclass(frozen=True, slots=True, kw_only=True)
class StageEdge:
    """One commit. `source` None: the tablet was at rest; `target` None: it is again."""

    source: TabletStage | None
    target: TabletStage | None
    cause: EdgeCause
    after_barrier: bool
    """The barrier of `source` was acknowledged before this commit."""


def stage_row(transition: TabletTransition) -> StageRow:
    return STAGES[transition.kind, transition.stage]


def stage_edges(kind: TransitionKind) -> Iterator[StageEdge]:
    """Every commit the table allows, in the order of the rows."""
    yield StageEdge(source=None, target=FIRST_STAGE, cause=EdgeCause.STARTED, after_barrier=False)
    for row in _ROWS_OF_KIND[kind]:
        yield StageEdge(source=row.stage, target=row.next, cause=EdgeCause.DONE, after_barrier=row.barrier)
        if row.back is None:
            continue
        if row.back_if_next_lost_more:
            yield StageEdge(source=row.stage, target=row.next, cause=EdgeCause.CHOSE_FORWARD, after_barrier=row.barrier)
            yield StageEdge(source=row.stage, target=row.back, cause=EdgeCause.CHOSE_BACK, after_barrier=False)
        else:
            yield StageEdge(source=row.stage, target=row.back, cause=EdgeCause.FAILED, after_barrier=False)


def pending_replicas(replicas: ReplicaSet, new_replicas: ReplicaSet) -> ReplicaSet:
    """Replicas that are being created."""
    return tuple(replica for replica in new_replicas if replica not in replicas)


def leaving_replicas(replicas: ReplicaSet, new_replicas: ReplicaSet) -> ReplicaSet:
    """Replicas that will be removed."""
    return tuple(replica for replica in replicas if replica not in new_replicas)


@dataclass(frozen=True, slots=True)
class TabletStream:
    """What the `streaming` stage moves: each destination gets whatever any of the sources has."""

    sources: ReplicaSet
    destinations: ReplicaSet

    @property
    def is_empty(self) -> bool:
        """Nothing to stream: no replica is added, or all that had the data were given up."""
        return not self.sources or not self.destinations


def tablet_stream(replicas: ReplicaSet, transition: TabletTransition, given_up: Collection[HostId]) -> TabletStream:
    """A migrated replica is copied from the one that it replaces: with any other source, a write that reached the
    leaving replica and one more would be on only one of three afterwards. A rebuilt replica has no such source, so it
    merges every remaining replica."""
    pending = pending_replicas(replicas, transition.new_replicas)
    if transition.kind is TransitionKind.REBUILD:
        staying = (replica for replica in replicas if replica in transition.new_replicas)
        return TabletStream(tuple(replica for replica in staying if replica.host not in given_up), pending)
    return TabletStream(leaving_replicas(replicas, transition.new_replicas), pending)


def stage_after_failure(
    replicas: ReplicaSet, transition: TabletTransition, given_up: Collection[HostId], *, hopeless: bool = False
) -> TabletStage | None:
    """The stage after a failed step of this stage; None: the step is repeated.

    A node that is only silent changes nothing: it may return with what it was sent. `given_up` are ignored nodes and
    nodes that left. `hopeless` means that streaming cannot succeed (no space at the target, or the leave it serves was
    cancelled); only streaming is abandoned for that.
    """
    row = stage_row(transition)
    if row.back is None:
        return None
    if row.back_if_next_lost_more:
        lost_before = _count_on(replicas, given_up)
        lost_after = _count_on(transition.new_replicas, given_up)
        return row.back if lost_after > lost_before else None
    if hopeless and row.action is not StageAction.NONE:
        return row.back
    stream = tablet_stream(replicas, transition, given_up)
    return row.back if _count_on((*stream.sources, *stream.destinations), given_up) else None


def _count_on(replicas: ReplicaSet, hosts: Collection[HostId]) -> int:
    return sum(replica.host in hosts for replica in replicas)
