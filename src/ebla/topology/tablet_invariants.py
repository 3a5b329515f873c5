"""Invariants of tablets in every snapshot (called by `invariants.py`), and of the tablets in shards' storage."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from ebla.model.identity import Replica, SessionId, TableId
from ebla.topology.node_states import TRANSITIONS_WITH_TABLETS_MOVING
from ebla.topology.routing.sharder import has_replica
from ebla.topology.snapshot import Session, Snapshot
from ebla.topology.states import SessionKind
from ebla.topology.tablet_map import ReplicaSet, TabletMap, TabletTransition
from ebla.topology.tablet_stages import STAGES, leaving_replicas, pending_replicas


@dataclass(frozen=True, slots=True)
class InvariantViolation:
    label: str
    text: str

    def __str__(self) -> str:
        return f"{self.label}: {self.text}"


@dataclass(frozen=True, slots=True)
class StoredTablet:
    """One tablet's rows found in the storage of one shard."""

    table: TableId
    tablet: int
    replica: Replica


def stray_tablets(snapshot: Snapshot, held: Iterable[StoredTablet]) -> Iterator[InvariantViolation]:
    """INV-TABL-1: a shard has rows of a tablet only if it is a replica of it; in transition, an old or a new one."""
    for each in held:
        tablets = snapshot.tablets.get(each.table)
        if tablets is None or each.tablet >= tablets.tablet_count:
            yield InvariantViolation(
                "INV-TABL-1", f"shard {each.replica} has rows of tablet {each.tablet} of {each.table}, which is gone"
            )
        elif not has_replica(tablets, each.tablet, each.replica):
            yield InvariantViolation(
                "INV-TABL-1", f"shard {each.replica} has rows of tablet {each.tablet} of {each.table} and is no replica"
            )


def tablet_violations(snapshot: Snapshot) -> Iterator[InvariantViolation]:
    """INV-TABL-2, INV-TABL-3 and INV-TABL-4, for every tablet."""
    expected: dict[SessionId, tuple[TableId, int]] = {}
    for table in sorted(snapshot.tablets):
        tablets = snapshot.tablets[table]
        for number, replicas in enumerate(tablets.replica_sets()):
            if len({replica.host for replica in replicas}) != len(replicas):
                yield InvariantViolation("INV-TABL-3", f"tablet {number} of {table} has two replicas on one host")
        for number, transition in tablets.transitions():
            name = f"tablet {number} of {table}"
            yield from _transition_violations(name, tablets.replicas(number), transition)
            if transition.session is not None:
                if transition.session in expected:
                    yield InvariantViolation("INV-TABL-2", f"{name} shares its session with another tablet")
                expected[transition.session] = (table, number)
        yield from _stream_violations(snapshot, tablets)
    yield from _session_violations(snapshot, expected)
    if snapshot.any_tablet_transition and snapshot.transition not in TRANSITIONS_WITH_TABLETS_MOVING:
        yield InvariantViolation(
            "INV-TABL-3", f"tablets are in transition while the topology is in {snapshot.transition}"
        )


def _transition_violations(
    name: str, replicas: ReplicaSet, transition: TabletTransition
) -> Iterator[InvariantViolation]:
    row = STAGES.get((transition.kind, transition.stage))
    if row is None:
        yield InvariantViolation(
            "INV-TABL-2", f"{name} is in {transition.stage}, which {transition.kind} does not have"
        )
        return
    if row.session != (transition.session is not None):
        held = "has a" if transition.session is not None else "lacks its"
        yield InvariantViolation("INV-TABL-2", f"{name} {held} session in {transition.stage}")
    pending = pending_replicas(replicas, transition.new_replicas)
    leaving = leaving_replicas(replicas, transition.new_replicas)
    if len(pending) > 1 or len(leaving) > 1 or not (pending or leaving):
        yield InvariantViolation(
            "INV-TABL-2", f"{name} changes {len(leaving)} replicas for {len(pending)}, which is not one transition"
        )
    if len({replica.host for replica in transition.new_replicas}) != len(transition.new_replicas):
        yield InvariantViolation("INV-TABL-3", f"{name} would have two replicas on one host")


def _stream_violations(snapshot: Snapshot, tablets: TabletMap) -> Iterator[InvariantViolation]:
    """INV-TABL-4: a table whose changes are captured has a stream for each of its tablets."""
    name = f"table {tablets.table}"
    table = snapshot.tables.get(tablets.table)
    if not tablets.streams:
        if table is not None and table.cdc:
            yield InvariantViolation("INV-TABL-4", f"{name} captures changes and has no streams")
        return
    if tablets.streams[-1].tablet_count != tablets.tablet_count:
        yield InvariantViolation("INV-TABL-4", f"{name} has streams for {tablets.streams[-1].tablet_count} tablets")
    if any(later.timestamp_ms <= earlier.timestamp_ms for earlier, later in pairwise(tablets.streams)):
        yield InvariantViolation("INV-TABL-4", f"{name} has sets of streams that do not follow each other")
    if len({each.mark for each in tablets.streams}) != len(tablets.streams):
        yield InvariantViolation("INV-TABL-4", f"{name} has streams that belong to two sets")


def _session_violations(
    snapshot: Snapshot, expected: dict[SessionId, tuple[TableId, int]]
) -> Iterator[InvariantViolation]:
    """INV-TABL-2: the sessions of stages that are open are exactly those of the stages tablets are in now."""
    for session in sorted(snapshot.sessions):
        listed: Session = snapshot.sessions[session]
        if listed.kind is not SessionKind.STAGE:
            continue
        if expected.pop(session, None) != (listed.table, listed.tablet):
            yield InvariantViolation(
                "INV-TABL-2", f"session {session} outlived the stage of tablet {listed.tablet} of {listed.table}"
            )
    for session, (table, number) in expected.items():
        yield InvariantViolation("INV-TABL-2", f"session {session} of tablet {number} of {table} is not open")
