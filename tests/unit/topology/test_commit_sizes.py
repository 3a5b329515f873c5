"""The largest commit of each kind fits a command of group 0, in a cluster of 100 nodes at RF 3."""

import random
import uuid
from dataclasses import replace

import msgspec
import pytest
from tests.unit.topology.small_cluster import with_transition

from ebla.control.group0.client import COMMAND_BYTES_MAX, VALUE_BYTES_MAX
from ebla.model.identity import HistoryId, HostId, Replica, RequestId, SessionId, ShardNumber, TableId
from ebla.model.transaction import Revision, Transaction
from ebla.topology import keys
from ebla.topology.apply.command import Rejection, apply_command, apply_commands
from ebla.topology.apply.draft import ProposedChange
from ebla.topology.cdc_generations import (
    PART_BYTES_MAX,
    PARTS_PER_COMMIT_MAX,
    generation_commits,
    generation_parts,
)
from ebla.topology.commands import (
    AdvanceTablets,
    ChooseTokens,
    Command,
    CreateTable,
    FinalizeResize,
    StartMoves,
    SubmitGlobalRequest,
    TabletAdvance,
    TabletMove,
)
from ebla.topology.frozen_map import FrozenMap
from ebla.topology.snapshot import (
    CdcRange,
    GlobalRequest,
    Keyspace,
    Node,
    Replication,
    Snapshot,
    Table,
    TopologyState,
)
from ebla.topology.states import (
    GlobalRequestKind,
    NodeState,
    ResizeType,
    Strategy,
    TabletStage,
    TransitionKind,
    TransitionState,
    UpgradeState,
)
from ebla.topology.tablet_map import (
    MOVES_PER_COMMIT_MAX,
    STEPS_PER_COMMIT_MAX,
    TABLETS_PER_COMMIT_MAX,
    ReplicaSet,
    Resize,
    TabletMap,
    TabletTransition,
    tablet_map,
)
from ebla.topology.token_allocation import NUM_TOKENS_MAX

GENERATION = uuid.UUID(int=9)
CHANCE = random.Random(1)
HOSTS = [HostId(uuid.UUID(int=CHANCE.getrandbits(128))) for _ in range(100)]
TABLES = [TableId(uuid.UUID(int=CHANCE.getrandbits(128))) for _ in range(3)]
REVISIONS = FrozenMap({keys.STATE: Revision(HistoryId(HOSTS[0]), 1)})


def some_replicas(count: int = 3) -> ReplicaSet:
    return tuple(Replica(host, ShardNumber(CHANCE.randrange(64))) for host in CHANCE.sample(HOSTS, count))


def big_cluster(*maps: TabletMap, transition: TransitionState | None = None) -> Snapshot:
    nodes = [
        Node(
            host=each,
            datacenter="dc1",
            rack="r1",
            shard_count=64,
            ignore_msb=12,
            release_version="1.0",
            address="10.0.0.1",
            num_tokens=1,
            state=NodeState.NORMAL,
            tokens=(each.int >> 65,),
        )
        for each in HOSTS
    ]
    return Snapshot(
        state=TopologyState(upgrade=UpgradeState.DONE, transition=transition),
        nodes=FrozenMap({node.host: node for node in nodes}),
        keyspaces=FrozenMap(
            {
                "ks": Keyspace(
                    name="ks", replication=Replication(Strategy.NETWORK_TOPOLOGY, (("dc1", 3),)), on_tablets=True
                )
            }
        ),
        tables=FrozenMap(
            {each.table: Table(id=each.table, keyspace="ks", name=f"t{number}") for number, each in enumerate(maps)}
        ),
        tablets=FrozenMap({each.table: each for each in maps}),
        revisions=REVISIONS,
    )


def random_map(table: TableId, count: int, resize: Resize | None = None) -> TabletMap:
    return tablet_map(table, [some_replicas() for _ in range(count)], repair_times_ms=[1 << 40] * count, resize=resize)


def committed(snapshot: Snapshot, command: Command) -> ProposedChange:
    result = apply_command(snapshot, command)
    assert isinstance(result, ProposedChange), result
    return result


def assert_fits(transaction: Transaction) -> None:
    size = len(msgspec.msgpack.encode(transaction))
    assert size <= COMMAND_BYTES_MAX * 15 // 16, "room for what a command has around it"


def test_the_largest_table() -> None:
    sets = tuple(some_replicas() for _ in range(TABLETS_PER_COMMIT_MAX))
    assert_fits(committed(big_cluster(), CreateTable(Table(id=TABLES[0], keyspace="ks", name="t"), sets)).transaction)
    refused = apply_command(big_cluster(), CreateTable(Table(id=TABLES[0], keyspace="ks", name="t"), sets * 2))
    assert isinstance(refused, Rejection)
    assert "at most 16384" in refused.reason


def test_resizes_are_finalised_table_by_table_as_they_fit() -> None:
    ready = Resize(ResizeType.SPLIT, 1, ready=True)
    maps = [random_map(table, TABLETS_PER_COMMIT_MAX // 4, ready) for table in sorted(TABLES)]
    snapshot = big_cluster(*maps, transition=TransitionState.TABLET_SPLIT_FINALIZATION)
    first = committed(snapshot, FinalizeResize(snapshot.version))
    assert_fits(first.transaction)
    counts = [first.snapshot.tablets[each.table].tablet_count // each.tablet_count for each in maps]
    assert counts == [2, 2, 1]
    assert first.snapshot.transition is TransitionState.TABLET_SPLIT_FINALIZATION, "the third waits for the next commit"
    second = committed(first.snapshot, FinalizeResize())
    assert second.snapshot.tablets[maps[2].table].tablet_count == TABLETS_PER_COMMIT_MAX // 2
    assert second.snapshot.transition is None
    largest = random_map(TABLES[0], TABLETS_PER_COMMIT_MAX // 2, ready)
    alone = big_cluster(largest, transition=TransitionState.TABLET_SPLIT_FINALIZATION)
    assert_fits(committed(alone, FinalizeResize(alone.version)).transaction)


def moves(tablets: TabletMap, count: int) -> tuple[TabletMove, ...]:
    made = []
    for number in range(count):
        old = tablets.replicas(number)
        free = next(each for each in HOSTS if each not in {replica.host for replica in old})
        made.append(
            TabletMove(
                table=tablets.table,
                tablet=number,
                kind=TransitionKind.MIGRATION,
                new_replicas=(*old[1:], Replica(free, old[0].shard)),
            )
        )
    return tuple(made)


def test_the_most_moves_that_start_at_once() -> None:
    tablets = random_map(TABLES[0], 2 * MOVES_PER_COMMIT_MAX)
    assert_fits(committed(big_cluster(tablets), StartMoves(moves(tablets, MOVES_PER_COMMIT_MAX))).transaction)
    refused = apply_command(big_cluster(tablets), StartMoves(moves(tablets, MOVES_PER_COMMIT_MAX + 1)))
    assert isinstance(refused, Rejection)
    assert "do not fit one commit" in refused.reason


def test_the_most_moves_that_end_at_once_each_in_a_chunk_of_its_own() -> None:
    tablets = random_map(TABLES[0], TABLETS_PER_COMMIT_MAX)
    numbers = [128 * index for index in range(STEPS_PER_COMMIT_MAX)]
    for number in numbers:
        new = (*tablets.replicas(number)[1:], some_replicas(1)[0])
        ending = TabletTransition(kind=TransitionKind.MIGRATION, stage=TabletStage.END_MIGRATION, new_replicas=new)
        tablets = with_transition(tablets, number, ending)
    snapshot = big_cluster(tablets, transition=TransitionState.TABLET_MIGRATION)
    session = SessionId(HOSTS[0])
    steps = tuple(
        TabletAdvance(table=TABLES[0], tablet=number, leaving=TabletStage.END_MIGRATION, session=session)
        for number in numbers
    )
    assert_fits(committed(snapshot, AdvanceTablets(steps, snapshot.version)).transaction)
    refused = apply_command(snapshot, AdvanceTablets((*steps, steps[0]), snapshot.version))
    assert isinstance(refused, Rejection)
    assert "129 steps do not fit" in refused.reason


@pytest.mark.parametrize(("count", "fits"), [(MOVES_PER_COMMIT_MAX, True), (2 * MOVES_PER_COMMIT_MAX, False)])
def test_a_change_of_replication_too_large_for_one_commit_is_refused_when_asked_for(count: int, fits: bool) -> None:
    snapshot = big_cluster(random_map(TABLES[0], count))
    request = GlobalRequest(
        id=RequestId(HOSTS[0]),
        kind=GlobalRequestKind.KEYSPACE_RF_CHANGE,
        initiator=HOSTS[0],
        start_ms=1,
        keyspace="ks",
        new_factors=(("dc1", 4),),
    )
    result = apply_command(snapshot, SubmitGlobalRequest(request))
    assert isinstance(result, ProposedChange) is fits
    assert fits or "start to move at once" in getattr(result, "reason", "")


def test_a_part_of_a_generation_fits_a_value() -> None:
    shards = 256
    ranges = [CdcRange(end, tuple(bytes([end % 256]) * 16 for _ in range(shards)), 12) for end in range(300)]
    parts = generation_parts(ranges)
    assert len(parts) > 1
    assert max(len(keys.encode(part)) for part in parts) <= PART_BYTES_MAX <= VALUE_BYTES_MAX


def test_parts_of_a_generation_fit_one_commit_with_the_tokens_of_the_node() -> None:
    ranges = [CdcRange(end, tuple(bytes([end % 256]) * 16 for _ in range(256)), 12) for end in range(300)]
    fullest = max(generation_parts(ranges), key=lambda part: len(keys.encode(part)))
    snapshot = big_cluster(transition=TransitionState.JOIN_GROUP0)
    joining = msgspec.structs.replace(
        snapshot.node(HOSTS[0]), state=NodeState.BOOTSTRAPPING, tokens=(), num_tokens=NUM_TOKENS_MAX
    )
    snapshot = replace(snapshot, nodes=snapshot.nodes.put(joining.host, joining))
    (commit,) = generation_commits(GENERATION, [fullest] * PARTS_PER_COMMIT_MAX)
    tokens = tuple(CHANCE.getrandbits(62) for _ in range(NUM_TOKENS_MAX))
    result = apply_commands(snapshot, (*commit, ChooseTokens(joining.host, tokens, GENERATION)))
    assert isinstance(result, ProposedChange), result
    assert_fits(result.transaction)
