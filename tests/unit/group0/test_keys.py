"""The map of keys: the document says what the code says, and the code names what is really stored."""

import uuid
from pathlib import Path
from typing import get_args

import msgspec
import pytest

from ebla.control.group0.node import CLUSTER_KEY, ClusterIdentity
from ebla.group0.keys import PREFIXES, PURGE_KEY, PurgeState, prefix_of
from ebla.group0.members import Member, MemberRole
from ebla.group0.operations import UNFINISHED_OPERATION_KEY, EndedOperation, OperationKind, UnfinishedOperation
from ebla.group0.start_record import StartRecord
from ebla.model.identity import Address, HostId
from ebla.model.records.jobs import JobRecord, PipelineState
from ebla.model.records.write_jobs import WriteJobRecord
from ebla.model.stored_value import StoredValue, decode_stored, encode_stored
from ebla.topology import keys as topology_keys

HOST = HostId(uuid.UUID(int=9))
DOCUMENT = Path(__file__).parents[3] / "docs" / "group0.md"


def test_the_document_holds_the_map_row_by_row() -> None:
    rows = [line for line in DOCUMENT.read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    shown = [
        f"| `{row.prefix}` | {', '.join(f'`{name}`' for name in row.structs) or '—'} | {row.holds} | {row.owner} |"
        for row in PREFIXES
    ]
    assert [row for row in rows if row.count("|") == 5] == shown


def test_every_struct_of_the_topology_and_of_group_0_itself_has_a_row() -> None:
    own = (
        Member,
        StartRecord,
        ClusterIdentity,
        PurgeState,
        UnfinishedOperation,
        EndedOperation,
        JobRecord,
        PipelineState,
        WriteJobRecord,
    )
    stored = {kind.__name__ for kind in (*get_args(topology_keys.Row), *own)}
    assert {name for row in PREFIXES for name in row.structs} == stored


def test_every_key_of_the_topology_belongs_to_a_row_of_its_own() -> None:
    names = ("STATE", "NODE", "REQUEST", "SESSION", "CDC", "KEYSPACE", "TABLE", "TABLETS")
    for prefix in (getattr(topology_keys, name) for name in names):
        row = prefix_of(f"{prefix}x")
        assert row is not None
        assert row.prefix == prefix
    assert [row.prefix for row in (prefix_of(CLUSTER_KEY), prefix_of("members/x"), prefix_of("user/x")) if row] == [
        "cluster/identity", "members/", "user/"
    ]  # fmt: skip
    assert prefix_of("elsewhere/x") is None


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (PURGE_KEY, PurgeState(5, 3, HOST)),
        (
            UNFINISHED_OPERATION_KEY,
            UnfinishedOperation(
                kind=OperationKind.CHANGE_ROLES,
                members=(Member(host=HOST, role=MemberRole.VOTER, address=Address("127.0.0.9", 7000)),),
                lock=b"a lock",
            ),
        ),
    ],
)
def test_rows_that_are_decided_keep_what_a_later_release_adds(key: str, value: msgspec.Struct) -> None:
    row = prefix_of(key)
    assert row is not None
    assert row.structs == (type(value).__name__,)
    later = msgspec.msgpack.encode([*msgspec.msgpack.decode(encode_stored(StoredValue(value))), "of a later release"])
    read = decode_stored(type(value), later)
    assert read.value == value
    assert encode_stored(read.with_value(value)) == later
