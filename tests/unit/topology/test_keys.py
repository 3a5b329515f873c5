import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebla.model.errors import Corruption
from ebla.model.identity import HostId, Replica, RequestId, SessionId, ShardNumber, TableId
from ebla.topology import keys
from ebla.topology.keys import chunk_row, decode, encode
from ebla.topology.snapshot import TopologyState
from ebla.topology.tablet_map import TabletChunk

ID = uuid.UUID(int=0xABC)
REPLICAS = st.builds(
    lambda host, shard: Replica(HostId(uuid.UUID(int=host)), ShardNumber(shard)),
    st.integers(0, 9),
    st.integers(0, 65535),
)


@given(st.lists(st.lists(REPLICAS, max_size=4).map(tuple), max_size=10).map(tuple))
def test_a_chunk_comes_back_as_it_was(sets: tuple[tuple[Replica, ...], ...]) -> None:
    row = decode("k", encode(chunk_row(TabletChunk(sets))))
    assert isinstance(row, keys.TabletChunkRow)
    assert row.replica_sets({}) == sets


def test_replicas_are_shared_between_chunks() -> None:
    replica = Replica(HostId(ID), ShardNumber(3))
    known: dict[Replica, Replica] = {}
    row = chunk_row(TabletChunk(((replica,),)))
    ((first,),) = row.replica_sets(known)
    ((second,),) = row.replica_sets(known)
    assert first is second


def test_keys_name_what_they_hold() -> None:
    assert keys.node_key(HostId(ID)) == f"topology/node/{ID}"
    assert keys.id_part(keys.request_key(RequestId(ID))) == ID
    assert keys.id_part(keys.session_key(SessionId(ID))) == ID
    assert keys.tablets_part(keys.map_key(TableId(ID))) == (ID, "map", 0)
    assert keys.tablets_part(keys.chunk_key(TableId(ID), 12)) == (ID, "chunk", 12)
    assert keys.tablets_part(keys.transition_key(TableId(ID), 99)) == (ID, "transition", 99)
    assert keys.cdc_part(keys.generation_key(ID)) == (ID, None)
    assert keys.cdc_part(keys.part_key(ID, 3)) == (ID, 3)


def test_keys_of_a_table_sort_by_number() -> None:
    numbers = [0, 9, 10, 1023, 99_999]
    made = [keys.transition_key(TableId(ID), number) for number in numbers]
    assert made == sorted(made)


@pytest.mark.parametrize("value", [b"", b"\xc1", encode(TopologyState())[:-1], b"\x93\xa7unknown\x01\x02"])
def test_damage_is_named_and_not_guessed_around(value: bytes) -> None:
    with pytest.raises(Corruption, match="topology/state"):
        decode(keys.STATE, value)
