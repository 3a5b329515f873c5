import pytest
from tests.unit.topology.small_cluster import host, replica

from ebla.topology.states import TabletStage, TransitionKind
from ebla.topology.tablet_map import TabletTransition
from ebla.topology.tablet_stages import (
    FIRST_STAGE,
    STAGES,
    UNUSED_STAGES,
    EdgeCause,
    Ending,
    Selector,
    StageAction,
    leaving_replicas,
    pending_replicas,
    stage_after_failure,
    stage_edges,
    tablet_stream,
)

A, B, C, D = (replica(number) for number in range(1, 5))
OLD = (A, B, C)
NEW = (D, B, C)
S = TabletStage

every_kind = pytest.mark.parametrize("kind", list(TransitionKind))


def in_stage(stage: TabletStage, kind: TransitionKind = TransitionKind.MIGRATION) -> TabletTransition:
    return TabletTransition(kind=kind, stage=stage, new_replicas=NEW)


def test_every_pair_of_kind_and_stage_has_a_row_or_a_reason_for_none() -> None:
    pairs = {(kind, stage) for kind in TransitionKind for stage in TabletStage}
    assert pairs == STAGES.keys() | UNUSED_STAGES.keys()
    assert not STAGES.keys() & UNUSED_STAGES.keys()


@every_kind
def test_every_row_is_reachable_and_leads_back_to_rest(kind: TransitionKind) -> None:
    edges = list(stage_edges(kind))
    reached = {FIRST_STAGE}
    for _ in edges:
        reached |= {edge.target for edge in edges if edge.source in reached and edge.target is not None}
    assert reached == {stage for row_kind, stage in STAGES if row_kind is kind}
    ending = {edge.source for edge in edges if edge.target is None}
    for _ in edges:
        ending |= {edge.source for edge in edges if edge.target in ending}
    assert reached <= ending


Edge = tuple[TabletStage | None, TabletStage | None, EdgeCause]

SEED_EDGES: list[Edge] = [
    (None, S.ALLOW_WRITE_BOTH_READ_OLD, EdgeCause.STARTED),
    (S.ALLOW_WRITE_BOTH_READ_OLD, S.WRITE_BOTH_READ_OLD, EdgeCause.DONE),
    (S.WRITE_BOTH_READ_OLD, S.STREAMING, EdgeCause.DONE),
    (S.STREAMING, S.WRITE_BOTH_READ_NEW, EdgeCause.DONE),
    (S.WRITE_BOTH_READ_NEW, S.USE_NEW, EdgeCause.DONE),
    (S.USE_NEW, S.CLEANUP, EdgeCause.DONE),
    (S.CLEANUP, S.END_MIGRATION, EdgeCause.DONE),
    (S.END_MIGRATION, None, EdgeCause.DONE),
    (S.ALLOW_WRITE_BOTH_READ_OLD, S.CLEANUP_TARGET, EdgeCause.FAILED),
    (S.WRITE_BOTH_READ_OLD, S.CLEANUP_TARGET, EdgeCause.FAILED),
    (S.STREAMING, S.CLEANUP_TARGET, EdgeCause.FAILED),
    (S.WRITE_BOTH_READ_NEW, S.USE_NEW, EdgeCause.CHOSE_FORWARD),
    (S.CLEANUP_TARGET, S.REVERT_MIGRATION, EdgeCause.DONE),
    (S.REVERT_MIGRATION, None, EdgeCause.DONE),
]
"""All of the seed's but `write_both_read_new` → `cleanup_target`, which goes through one more stage here."""
OUR_EDGES: list[Edge] = [
    (S.WRITE_BOTH_READ_NEW, S.WRITE_BOTH_READ_OLD_FALLBACK_CLEANUP, EdgeCause.CHOSE_BACK),
    (S.WRITE_BOTH_READ_OLD_FALLBACK_CLEANUP, S.CLEANUP_TARGET, EdgeCause.DONE),
]


@pytest.mark.parametrize("kind", [TransitionKind.MIGRATION, TransitionKind.REBUILD])
def test_the_edges_are_the_seeds_but_for_the_way_back(kind: TransitionKind) -> None:
    edges = [(edge.source, edge.target, edge.cause) for edge in stage_edges(kind)]
    assert sorted(edges, key=str) == sorted(SEED_EDGES + OUR_EDGES, key=str)


def test_inside_a_node_the_choice_falls_away() -> None:
    edges = [(edge.source, edge.target, edge.cause) for edge in stage_edges(TransitionKind.INTRANODE_MIGRATION)]
    expected = [edge for edge in SEED_EDGES if edge[2] is not EdgeCause.CHOSE_FORWARD]
    assert sorted(edges, key=str) == sorted(expected, key=str)


P, BOTH, N = Selector.PREVIOUS, Selector.BOTH, Selector.NEXT


@pytest.mark.parametrize(
    ("stage", "reads", "writes", "barrier", "session", "action"),
    [
        (S.ALLOW_WRITE_BOTH_READ_OLD, P, P, True, False, StageAction.NONE),
        (S.WRITE_BOTH_READ_OLD, P, BOTH, True, False, StageAction.NONE),
        (S.STREAMING, P, BOTH, False, True, StageAction.COPY_FILES),
        (S.WRITE_BOTH_READ_NEW, N, BOTH, True, False, StageAction.NONE),
        (S.WRITE_BOTH_READ_OLD_FALLBACK_CLEANUP, P, BOTH, True, False, StageAction.NONE),
        (S.USE_NEW, N, N, True, False, StageAction.NONE),
        (S.CLEANUP, N, N, False, True, StageAction.CLEAN_LEAVING),
        (S.END_MIGRATION, N, N, True, False, StageAction.NONE),
        (S.CLEANUP_TARGET, P, P, True, True, StageAction.CLEAN_PENDING),
        (S.REVERT_MIGRATION, P, P, True, False, StageAction.NONE),
    ],
)
def test_what_holds_in_each_stage(
    stage: TabletStage, reads: Selector, writes: Selector, barrier: bool, session: bool, action: StageAction
) -> None:
    row = STAGES[TransitionKind.MIGRATION, stage]
    assert (row.reads, row.writes, row.barrier, row.session, row.action) == (reads, writes, barrier, session, action)
    rebuilt = STAGES[TransitionKind.REBUILD, stage]
    assert (rebuilt.reads, rebuilt.writes, rebuilt.barrier, rebuilt.session) == (reads, writes, barrier, session)


@every_kind
def test_a_session_is_open_exactly_where_something_is_done(kind: TransitionKind) -> None:
    for row in (row for (row_kind, _), row in STAGES.items() if row_kind is kind):
        assert row.session == (row.action is not StageAction.NONE), row.stage


@every_kind
def test_whatever_a_session_did_is_drained_by_a_barrier_before_anything_else_is_done(kind: TransitionKind) -> None:
    """INV-TABL-2: the next stage with effects of its own, and rest, come only after a barrier that waits for guards."""
    for edge in stage_edges(kind):
        if edge.source is None or not STAGES[kind, edge.source].session:
            continue
        assert edge.target is not None
        assert STAGES[kind, edge.target].barrier


@every_kind
def test_the_last_stage_says_which_replicas_stay(kind: TransitionKind) -> None:
    rows = [row for (row_kind, _), row in STAGES.items() if row_kind is kind]
    assert {row.stage: row.ending for row in rows if row.ending is not None} == {
        S.END_MIGRATION: Ending.REPLICAS_BECOME_NEXT,
        S.REVERT_MIGRATION: Ending.REPLICAS_STAY,
    }
    assert all((row.next is None) == (row.ending is not None) for row in rows)
    assert all(len(row.promise) > 20 for row in rows)


def test_who_is_pending_and_who_leaves() -> None:
    assert pending_replicas(OLD, NEW) == (D,)
    assert leaving_replicas(OLD, NEW) == (A,)
    assert pending_replicas(OLD, OLD[1:]) == ()
    assert leaving_replicas(OLD, (*OLD, D)) == ()


def test_a_migrated_replica_is_copied_from_the_one_it_stands_in_for() -> None:
    stream = tablet_stream(OLD, in_stage(S.STREAMING), ())
    assert (stream.sources, stream.destinations) == ((A,), (D,))


def test_a_rebuilt_replica_merges_all_that_remain() -> None:
    stream = tablet_stream(OLD, in_stage(S.STREAMING, TransitionKind.REBUILD), (A.host, B.host))
    assert (stream.sources, stream.destinations) == ((C,), (D,))
    assert not stream.is_empty


def test_nothing_is_streamed_where_a_replica_is_only_dropped_or_all_sources_are_gone() -> None:
    dropped = TabletTransition(kind=TransitionKind.REBUILD, stage=S.STREAMING, new_replicas=(B, C))
    assert tablet_stream(OLD, dropped, ()).is_empty
    assert tablet_stream(
        (A,), TabletTransition(kind=TransitionKind.REBUILD, stage=S.STREAMING, new_replicas=(D,)), (A.host,)
    ).is_empty


@pytest.mark.parametrize("stage", [S.ALLOW_WRITE_BOTH_READ_OLD, S.WRITE_BOTH_READ_OLD, S.STREAMING])
def test_before_reads_switch_a_failure_leads_back_once_the_source_or_target_is_given_up(stage: TabletStage) -> None:
    assert stage_after_failure(OLD, in_stage(stage), ()) is None
    assert stage_after_failure(OLD, in_stage(stage), (B.host,)) is None
    assert stage_after_failure(OLD, in_stage(stage), (D.host,)) is S.CLEANUP_TARGET
    assert stage_after_failure(OLD, in_stage(stage), (A.host,)) is S.CLEANUP_TARGET


def test_a_rebuild_is_not_given_up_for_the_dead_node_it_works_around() -> None:
    transition = in_stage(S.STREAMING, TransitionKind.REBUILD)
    assert stage_after_failure(OLD, transition, (A.host,)) is None
    assert stage_after_failure(OLD, transition, (A.host, D.host)) is S.CLEANUP_TARGET


def test_only_streaming_is_given_up_as_hopeless() -> None:
    assert stage_after_failure(OLD, in_stage(S.STREAMING), (), hopeless=True) is S.CLEANUP_TARGET
    assert stage_after_failure(OLD, in_stage(S.WRITE_BOTH_READ_OLD), (), hopeless=True) is None
    assert stage_after_failure(OLD, in_stage(S.WRITE_BOTH_READ_NEW), (), hopeless=True) is None


def test_the_choice_goes_with_the_set_that_lost_less() -> None:
    back = S.WRITE_BOTH_READ_OLD_FALLBACK_CLEANUP
    here = in_stage(S.WRITE_BOTH_READ_NEW)
    assert stage_after_failure(OLD, here, (D.host,)) is back
    assert stage_after_failure(OLD, here, (D.host, B.host)) is back
    assert stage_after_failure(OLD, here, (A.host,)) is None
    assert stage_after_failure(OLD, here, (A.host, D.host)) is None
    assert stage_after_failure(OLD, here, (B.host,)) is None


@pytest.mark.parametrize(
    "stage",
    [
        S.WRITE_BOTH_READ_OLD_FALLBACK_CLEANUP,
        S.USE_NEW,
        S.CLEANUP,
        S.END_MIGRATION,
        S.CLEANUP_TARGET,
        S.REVERT_MIGRATION,
    ],
)
def test_late_stages_are_repeated_whatever_is_lost(stage: TabletStage) -> None:
    lost = tuple(host(number) for number in range(1, 5))
    assert stage_after_failure(OLD, in_stage(stage), lost, hopeless=True) is None
