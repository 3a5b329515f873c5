"""The zombie stream: a late message of a failed migration arrives after the retry, the delete and the repair.

    1. tablet T has replicas A, B, C
    2. a write of key K reaches all of them
    3. T's replica starts to move from A to D
    4. the migration fails, and leaves behind a message that will bring K to D
    5. the migration is tried again and completes
    6. K is deleted on D, B and C
    7. T is repaired
    8. D forgets the tombstone
    9. the message arrives at D

Without sessions K reappears. The stages, sessions and barriers are the real ones; storage is a dictionary per node.
"""

from dataclasses import dataclass, field

import pytest
from tests.unit.topology.world import Coordinator, World, host

from ebla.model.identity import HostId, Replica, SessionId, ShardNumber, TableId
from ebla.model.transaction import Revision
from ebla.topology.commands import AdvanceTablets, RecordRepair, StartMoves, TabletAdvance, TabletMove
from ebla.topology.invariants import StoredTablet, stray_tablets
from ebla.topology.routing.replica_sets import ReplicaSets
from ebla.topology.sessions import BarrierProof, FrozenGuard, GuardRefusal, SessionStateMachine
from ebla.topology.snapshot import Snapshot
from ebla.topology.states import TabletStage, TransitionKind
from ebla.topology.tablet_map import TabletTransition
from ebla.topology.tablet_stages import StageAction, leaving_replicas, pending_replicas, stage_row, tablet_stream

A, B, C, D = (host(number) for number in range(1, 5))
KEY = "K"
TOKEN = 0


@dataclass
class Cell:
    timestamp: int
    deleted: bool = False


@dataclass
class Zombie:
    """A row on its way, with the permit it was sent under."""

    guard: FrozenGuard
    cell: Cell
    target: HostId


@dataclass(kw_only=True)
class Cluster:
    """Four nodes, their rows of one tablet, and what each knows of sessions."""

    world: World
    table: TableId
    rows: dict[HostId, dict[str, Cell]] = field(default_factory=dict)
    books: dict[HostId, SessionStateMachine] = field(default_factory=dict)

    @property
    def snapshot(self) -> Snapshot:
        return self.world.snapshot

    @property
    def transition(self) -> TabletTransition:
        transition = self.snapshot.tablets[self.table].transition(0)
        assert transition is not None
        return transition

    def revision(self) -> Revision:
        return self.snapshot.revisions["topology/state"]

    def barrier(self) -> None:
        """Every node follows the feed; a guard of a closed session that is held would stop it."""
        for name, book in self.books.items():
            self.books[name] = book.followed(self.snapshot, self.revision())
            assert self.books[name].is_drained

    def write(self, timestamp: int, *, deleted: bool = False) -> None:
        """Sends to all replicas that the router names."""
        targets = ReplicaSets(self.snapshot).of(self.table).writing(TOKEN)
        for replica in (*targets.natural, *targets.pending):
            self.put(replica.host, Cell(timestamp, deleted))

    def put(self, name: HostId, cell: Cell) -> None:
        known = self.rows[name].get(KEY)
        if known is None or known.timestamp < cell.timestamp:
            self.rows[name][KEY] = cell

    def apply_streamed(self, zombie: Zombie) -> GuardRefusal | None:
        """What a shard does with a streamed row: barrier, guard, effect, release."""
        self.books[zombie.target] = self.books[zombie.target].followed(self.snapshot, self.revision())
        book = self.books[zombie.target]
        proof = BarrierProof(self.revision(), self.world.now_ms)
        refusal = book.refusal(zombie.guard, proof)
        if refusal is None:
            held = book.entered(zombie.guard, proof)
            self.put(zombie.target, zombie.cell)
            self.books[zombie.target] = held.released(zombie.guard)
        return refusal

    def advance(self, *, failed: bool = False) -> None:
        """One stage: barrier, action, commit."""
        transition = self.transition
        row = stage_row(transition)
        fence = self.snapshot.fence
        if row.barrier and not failed:
            self.barrier()
            fence = self.snapshot.version
        if not failed:
            self.act(transition, row.action)
        step = TabletAdvance(
            table=self.table,
            tablet=0,
            leaving=transition.stage,
            session=SessionId(self.world.new_id()),
            failed=failed,
            hopeless=failed,
        )
        self.world.do(AdvanceTablets((step,), fence=fence))

    def act(self, transition: TabletTransition, action: StageAction) -> None:
        old = self.snapshot.tablets[self.table].replicas(0)
        match action:
            case StageAction.COPY_FILES | StageAction.LINK_FILES | StageAction.MERGE_ROWS:
                stream = tablet_stream(old, transition, ())
                assert transition.session is not None
                for source in stream.sources:
                    for target in stream.destinations:
                        for cell in self.rows[source.host].values():
                            piece = Zombie(FrozenGuard(transition.session), cell, target.host)
                            assert self.apply_streamed(piece) is None
            case StageAction.CLEAN_LEAVING:
                for replica in leaving_replicas(old, transition.new_replicas):
                    self.rows[replica.host].clear()
            case StageAction.CLEAN_PENDING:
                for replica in pending_replicas(old, transition.new_replicas):
                    self.rows[replica.host].clear()
            case StageAction.NONE:
                pass

    def advance_until(self, stage: TabletStage) -> None:
        while self.transition.stage is not stage:
            self.advance()

    def finish(self) -> None:
        while self.snapshot.tablets[self.table].transition(0) is not None:
            self.advance()

    def start_move(self) -> None:
        replicas = self.snapshot.tablets[self.table].replicas(0)
        new = tuple(Replica(D, ShardNumber(0)) if replica.host == A else replica for replica in replicas)
        self.world.do(
            StartMoves((TabletMove(table=self.table, tablet=0, kind=TransitionKind.MIGRATION, new_replicas=new),))
        )

    def repair(self) -> None:
        newest = max((cell for rows in self.rows.values() for cell in rows.values()), key=lambda cell: cell.timestamp)
        for replica in self.snapshot.tablets[self.table].replicas(0):
            self.put(replica.host, newest)
        self.world.do(RecordRepair(self.table, ((0, self.world.now_ms),)))

    def forget_tombstone(self, name: HostId) -> None:
        assert self.rows[name][KEY].deleted
        del self.rows[name][KEY]

    def visible(self) -> bool:
        """Whether some reader may get the row."""
        reading = ReplicaSets(self.snapshot).of(self.table).reading(TOKEN)
        return any(not cell.deleted for replica in reading for cell in self.rows[replica.host].values())


@pytest.fixture
def cluster() -> Cluster:
    world = World(checking=False)  # so that an open session is detected by the row it brings back
    world.create(world.node(1))
    for number in (2, 3, 4):
        world.ask_to_join(world.node(number))
        Coordinator(world).settle()
    table = world.create_table(tablets=1, factor=3)
    made = Cluster(world=world, table=table)
    replicas = world.snapshot.tablets[table].replicas(0)
    assert [replica.host for replica in replicas] == [A, B, C]
    made.rows = {name: {} for name in (A, B, C, D)}
    made.books = {name: SessionStateMachine(made.revision()) for name in (A, B, C, D)}
    made.barrier()
    return made


def fail_a_migration(cluster: Cluster) -> Zombie:
    """Steps 1 to 4."""
    cluster.write(timestamp=1)
    assert all(KEY in cluster.rows[name] for name in (A, B, C))
    cluster.start_move()
    cluster.advance_until(TabletStage.STREAMING)
    session = cluster.transition.session
    assert session is not None
    left_behind = Zombie(FrozenGuard(session), Cell(1), D)
    cluster.advance(failed=True)
    assert cluster.transition.stage is TabletStage.CLEANUP_TARGET
    cluster.finish()
    assert cluster.rows[D] == {}
    return left_behind


def retry_delete_repair_and_forget(cluster: Cluster) -> None:
    """Steps 5 to 8."""
    cluster.start_move()
    cluster.finish()
    assert [replica.host for replica in cluster.snapshot.tablets[cluster.table].replicas(0)] == [D, B, C]
    assert cluster.rows[D][KEY] == Cell(1)
    assert cluster.rows[A] == {}
    cluster.write(timestamp=2, deleted=True)
    cluster.repair()
    cluster.forget_tombstone(D)
    assert not cluster.visible()


def test_the_late_piece_is_refused_and_the_row_stays_deleted(cluster: Cluster) -> None:
    zombie = fail_a_migration(cluster)
    retry_delete_repair_and_forget(cluster)
    assert cluster.apply_streamed(zombie) is GuardRefusal.NOT_LISTED
    assert not cluster.visible()
    assert cluster.rows[D] == {}


def test_without_the_guard_the_row_would_be_back(cluster: Cluster) -> None:
    """The scenario can fail: the same message, applied without the check, resurrects the key."""
    zombie = fail_a_migration(cluster)
    retry_delete_repair_and_forget(cluster)
    cluster.put(zombie.target, zombie.cell)
    assert cluster.visible()


def test_the_late_piece_is_refused_in_every_stage_of_the_second_attempt(cluster: Cluster) -> None:
    """Also while the new attempt streams to the same node: its session is another one."""
    zombie = fail_a_migration(cluster)
    cluster.start_move()
    stages = []
    while cluster.snapshot.tablets[cluster.table].transition(0) is not None:
        stages.append(cluster.transition.stage)
        assert cluster.apply_streamed(zombie) is GuardRefusal.NOT_LISTED
        cluster.advance()
    assert TabletStage.STREAMING in stages
    assert len(stages) == 7


def test_a_piece_under_way_holds_the_barrier_until_it_is_done(cluster: Cluster) -> None:
    """It entered while the session was open. Clean-up waits for it, so what it wrote is cleaned up too."""
    cluster.write(timestamp=1)
    cluster.start_move()
    cluster.advance_until(TabletStage.STREAMING)
    session = cluster.transition.session
    assert session is not None
    guard = FrozenGuard(session)
    proof = BarrierProof(cluster.revision(), 0)
    cluster.books[D] = cluster.books[D].followed(cluster.snapshot, cluster.revision()).entered(guard, proof)
    cluster.advance(failed=True)
    with pytest.raises(AssertionError):
        cluster.advance()
    cluster.put(D, Cell(1))
    cluster.books[D] = cluster.books[D].released(guard)
    cluster.finish()
    places = {replica.host: replica for replica in cluster.snapshot.tablets[cluster.table].replicas(0)}
    places[D] = Replica(D, ShardNumber(0))
    held = [StoredTablet(cluster.table, 0, places[name]) for name, rows in cluster.rows.items() if rows]
    assert [each.replica.host for each in held] == [A, B, C]
    assert list(stray_tablets(cluster.snapshot, held)) == []


def test_a_node_that_cannot_reach_the_quorum_applies_nothing(cluster: Cluster) -> None:
    """Its list of sessions may be outdated: it still shows the one that was closed meanwhile."""
    cluster.write(timestamp=1)
    cluster.start_move()
    cluster.advance_until(TabletStage.STREAMING)
    session = cluster.transition.session
    assert session is not None
    stale = cluster.books[D].followed(cluster.snapshot, cluster.revision())
    cluster.advance(failed=True)
    assert stale.refusal(FrozenGuard(session), BarrierProof(None, 0)) is GuardRefusal.NO_BARRIER
    assert stale.refusal(FrozenGuard(session), BarrierProof(cluster.revision(), 0)) is GuardRefusal.BEHIND_BARRIER
