import uuid
from dataclasses import replace

import pytest
from tests.unit.topology.small_cluster import TABLE, cluster, node, one_tablet, replica, request_id, session

from ebla.model.identity import TableId
from ebla.topology.frozen_map import FrozenMap
from ebla.topology.invariants import StoredTablet, stray_tablets, tablet_violations
from ebla.topology.snapshot import Session, Snapshot, Table
from ebla.topology.states import SessionKind, TabletStage, TransitionKind, TransitionState
from ebla.topology.tablet_map import TabletStreams, TabletTransition

A, B, C, D = (replica(number) for number in range(1, 5))
NODES = [node(number) for number in range(1, 5)]
OPEN = Session(id=session(1), kind=SessionKind.STAGE, table=TABLE, tablet=0)
STREAMING = TabletTransition(
    kind=TransitionKind.MIGRATION, stage=TabletStage.STREAMING, new_replicas=(D, B, C), session=OPEN.id
)
MIGRATING = TransitionState.TABLET_MIGRATION


def moving(
    transition: TabletTransition | None, *sessions: Session, track: TransitionState | None = MIGRATING
) -> Snapshot:
    snapshot = cluster(*NODES, tablets=one_tablet(A, B, C, transition=transition), transition=track)
    return replace(snapshot, sessions=FrozenMap({each.id: each for each in sessions}))


def labels(snapshot: Snapshot) -> list[str]:
    return [each.label for each in tablet_violations(snapshot)]


def test_a_sound_snapshot_has_no_violation() -> None:
    assert labels(moving(None, track=None)) == []
    assert labels(moving(STREAMING, OPEN)) == []
    assert (
        labels(moving(STREAMING, OPEN, Session(id=session(9), kind=SessionKind.BULK_JOB, request=request_id(1)))) == []
    )


@pytest.mark.parametrize(
    ("snapshot", "text"),
    [
        (moving(None, OPEN), "outlived"),
        (moving(STREAMING), "is not open"),
        (moving(STREAMING, Session(id=session(1), kind=SessionKind.STAGE, table=TABLE, tablet=5)), "outlived"),
        (
            moving(
                TabletTransition(kind=TransitionKind.MIGRATION, stage=TabletStage.STREAMING, new_replicas=(D, B, C))
            ),
            "lacks its session",
        ),
        (
            moving(
                TabletTransition(
                    kind=TransitionKind.MIGRATION, stage=TabletStage.USE_NEW, new_replicas=(D, B, C), session=OPEN.id
                ),
                OPEN,
            ),
            "has a session",
        ),
        (
            moving(
                TabletTransition(
                    kind=TransitionKind.INTRANODE_MIGRATION,
                    stage=TabletStage.WRITE_BOTH_READ_OLD_FALLBACK_CLEANUP,
                    new_replicas=(D, B, C),
                )
            ),
            "does not have",
        ),
        (
            moving(TabletTransition(kind=TransitionKind.MIGRATION, stage=TabletStage.USE_NEW, new_replicas=(A, B, C))),
            "not one transition",
        ),
        (
            moving(
                TabletTransition(
                    kind=TransitionKind.MIGRATION, stage=TabletStage.USE_NEW, new_replicas=(D, replica(5), C)
                )
            ),
            "not one",
        ),
    ],
)
def test_a_session_fits_its_stage_and_a_tablet_has_one_transition(snapshot: Snapshot, text: str) -> None:
    """INV-TABL-2."""
    found = list(tablet_violations(snapshot))
    assert [each.label for each in found] == ["INV-TABL-2"]
    assert text in found[0].text


def test_two_tablets_do_not_share_a_session() -> None:
    snapshot = moving(STREAMING, OPEN)
    other = TableId(uuid.UUID(int=1))
    both = replace(snapshot, tablets=snapshot.tablets.put(other, replace(snapshot.tablets[TABLE], table=other)))
    assert any("shares its session" in each.text for each in tablet_violations(both))


@pytest.mark.parametrize("track", [None, TransitionState.WRITE_BOTH_READ_OLD, TransitionState.LEFT_TOKEN_RING])
def test_tablets_move_on_their_track_alone(track: TransitionState | None) -> None:
    """INV-TABL-3."""
    assert labels(moving(STREAMING, OPEN, track=track)) == ["INV-TABL-3"]
    assert labels(moving(STREAMING, OPEN, track=TransitionState.TABLET_DRAINING)) == []


def test_a_host_has_at_most_one_replica_of_a_tablet_at_rest() -> None:
    """INV-TABL-3."""
    assert labels(cluster(*NODES, tablets=one_tablet(A, replica(1, 2), C))) == ["INV-TABL-3"]
    crowded = TabletTransition(
        kind=TransitionKind.MIGRATION, stage=TabletStage.USE_NEW, new_replicas=(replica(2, 3), B, C)
    )
    assert labels(moving(crowded)) == ["INV-TABL-3"]


def test_a_shard_has_rows_only_of_its_own_tablets() -> None:
    """INV-TABL-1."""
    held = [StoredTablet(TABLE, 0, each) for each in (A, B, C, D)]
    assert [each.label for each in stray_tablets(moving(None, track=None), held)] == ["INV-TABL-1"]
    assert list(stray_tablets(moving(STREAMING, OPEN), held)) == []
    gone = StoredTablet(TABLE, 1, A)
    assert [each.label for each in stray_tablets(moving(None, track=None), [gone])] == ["INV-TABL-1"]


FIRST, SECOND = TabletStreams(100, 1, 7), TabletStreams(200, 1, 8)


@pytest.mark.parametrize(
    ("streams", "text"),
    [
        ((), "has no streams"),
        ((TabletStreams(100, 2, 7),), "for 2 tablets"),
        ((SECOND, FIRST), "do not follow"),
        ((FIRST, TabletStreams(200, 1, 7)), "belong to two sets"),
    ],
)
def test_a_table_whose_changes_are_captured_has_a_stream_for_each_tablet(
    streams: tuple[TabletStreams, ...], text: str
) -> None:
    """INV-TABL-4."""

    def captured(streams: tuple[TabletStreams, ...]) -> Snapshot:
        snapshot = cluster(*NODES, tablets=replace(one_tablet(A, B, C), streams=streams))
        return replace(snapshot, tables=FrozenMap({TABLE: Table(id=TABLE, keyspace="ks", name="t", cdc=True)}))

    assert labels(captured((FIRST, SECOND))) == []
    (found,) = tablet_violations(captured(streams))
    assert found.label == "INV-TABL-4"
    assert text in found.text
