"""A ring of three nodes that a fourth joins, with tables on vnodes and one on tablets."""

import uuid
from collections.abc import Sequence

from tests.unit.pipeline.jobs_rig import with_fields
from tests.unit.topology.small_cluster import cluster, host, node, request_id, session

from ebla.model.cql_types import Scalar, ScalarType
from ebla.model.identity import HostId, TableId, TopologyVersion
from ebla.model.schema import Column, ColumnKind, encode_schema, new_schema
from ebla.model.token import RING_TOKENS, TOKEN_MIN, Token
from ebla.topology.frozen_map import FrozenMap
from ebla.topology.snapshot import Keyspace, Replication, Session, Snapshot, Table, TopologyState
from ebla.topology.states import NodeState, SessionKind, Strategy, TransitionState
from ebla.wire.topology_messages import StreamOrder

SESSION = session(77)
ORDER = StreamOrder(session=SESSION, version=TopologyVersion(5), request=uuid.UUID(int=7))
FIRST, SECOND, ON_TABLETS = (TableId(uuid.UUID(int=0x100 + number)) for number in range(3))
NEW = host(4)


def tokens_of(number: int, count: int) -> tuple[Token, ...]:
    """Interleaved with those of the other nodes."""
    step = RING_TOKENS // (4 * count)
    return tuple(Token(TOKEN_MIN + step * (4 * place + number) - step // 2) for place in range(count))


def table(table_id: TableId, keyspace: str, name: str) -> Table:
    columns = (
        Column(name="k", type=ScalarType(Scalar.INT), kind=ColumnKind.PARTITION_KEY),
        Column(name="v", type=ScalarType(Scalar.TEXT), kind=ColumnKind.REGULAR),
    )
    schema = new_schema(table_id, keyspace, name, columns)
    return Table(id=table_id, keyspace=keyspace, name=name, definition=encode_schema(schema))


def joining(
    tables: Sequence[TableId] = (FIRST, SECOND, ON_TABLETS),
    *,
    tokens: int = 4,
    shards: int = 2,
    ignore_msb: int = 0,
    factor: int = 3,
    excluded: Sequence[HostId] = (),
    version: int = 5,
) -> Snapshot:
    """Node 4 is in `write_both_read_old`."""
    nodes = [
        node(
            number,
            tokens=tokens_of(number, tokens),
            num_tokens=tokens,
            shard_count=shards,
            ignore_msb=ignore_msb,
            state=NodeState.NORMAL if number < 4 else NodeState.BOOTSTRAPPING,
            request=None if number < 4 else request_id(7),
        )
        for number in (1, 2, 3, 4)
    ]
    replication = Replication(Strategy.NETWORK_TOPOLOGY, (("dc1", factor),))
    state = TopologyState(
        version=TopologyVersion(version),
        transition=TransitionState.WRITE_BOTH_READ_OLD,
        session=SESSION,
        ignored_nodes=tuple(excluded),
    )
    known = {
        FIRST: table(FIRST, "ks", "first"),
        SECOND: table(SECOND, "ks", "second"),
        ON_TABLETS: table(ON_TABLETS, "tablets", "third"),
    }
    opened = Session(id=SESSION, kind=SessionKind.REQUEST, request=request_id(7))
    return with_fields(
        cluster(*nodes),
        state=state,
        keyspaces=FrozenMap(
            {
                "ks": Keyspace(name="ks", replication=replication, on_tablets=False),
                "tablets": Keyspace(name="tablets", replication=replication, on_tablets=True),
            }
        ),
        tables=FrozenMap({each: known[each] for each in tables}),
        sessions=FrozenMap({SESSION: opened}),
    )
