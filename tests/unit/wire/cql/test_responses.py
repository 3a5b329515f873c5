"""A driver's own decoder reads our responses."""

import io
import struct
from typing import Any

import pytest
from cassandra import ReadTimeout as DriverReadTimeout
from cassandra import Unavailable as DriverUnavailable
from cassandra import WriteTimeout as DriverWriteTimeout
from cassandra.protocol import ErrorMessage, ResultMessage, SupportedMessage
from tests.unit.wire.cql.responses_rig import FEATURES, event

from ebla.cql.system_tables.node_info import supported_options
from ebla.model import errors
from ebla.model.consistency import ConsistencyLevel
from ebla.model.cql_types import SCALARS, CqlType, ListType, MapType, SetType, TupleType
from ebla.model.error_codes import CODES, CqlCode
from ebla.model.errors import EblaError
from ebla.wire.cql import notation, responses
from ebla.wire.cql.messages import (
    ColumnSpec,
    KeyspaceSet,
    PreparedResult,
    Rows,
    SchemaChangeKind,
    SchemaChangeResult,
    Void,
)
from ebla.wire.cql.responses import NodeChange, WriteType

INT, TEXT = SCALARS["int"], SCALARS["text"]
QUORUM = ConsistencyLevel.QUORUM


def spec(name: str, kind: CqlType, table: str = "t") -> ColumnSpec:
    return ColumnSpec(keyspace="ks", table=table, name=name, type=kind)


def result(body: bytes) -> Any:
    return ResultMessage.recv_body(io.BytesIO(body), 4, FEATURES, {}, None, None)


def error(failure: EblaError, *context: Any) -> Any:
    return ErrorMessage.recv_body(io.BytesIO(responses.error(failure, *context)), 4, FEATURES, {}, None, None)


def test_rows_of_every_scalar_type_and_of_nested_ones() -> None:
    kinds: list[CqlType] = [*SCALARS.values()]
    kinds += [ListType(INT, False), SetType(TEXT, False), MapType(TEXT, ListType(INT, True), False)]
    kinds.append(TupleType((INT, TEXT)))
    columns = tuple(spec(f"c{place}", kind) for place, kind in enumerate(kinds))
    found = result(responses.rows(Rows(columns, [[None] * len(columns)], b"next")))
    assert found.column_names == [column.name for column in columns]
    assert found.parsed_rows == [(None,) * len(columns)]
    assert found.paging_state == b"next"
    names = [kind.cql_parameterized_type().replace("varchar", "text") for kind in found.column_types]
    assert names[: len(SCALARS)] == [str(kind.scalar) for kind in SCALARS.values()]
    nested = ["list<int>", "set<text>", "map<text, list<int>>", "tuple<int, text>"]
    assert [name.replace("frozen<tuple<int, text>>", "tuple<int, text>") for name in names[len(SCALARS) :]] == nested


def test_values_and_nulls_in_their_places() -> None:
    columns = (spec("a", INT), spec("b", TEXT, "other"))
    found = result(responses.rows(Rows(columns, [[b"\0\0\0\5", None], [None, b""]])))
    assert found.parsed_rows == [(5, None), (None, "")]
    assert [column[1] for column in found.column_metadata] == ["t", "other"]


def test_metadata_that_the_client_knows_is_left_out() -> None:
    rows = Rows((spec("a", INT),), [[b"\0\0\0\5"]], b"state")
    body = responses.rows(rows, skip_metadata=True)
    assert body == struct.pack(">iiii", 2, 2 | 4, 1, 5) + b"state" + struct.pack(">iii", 1, 4, 5)


def test_void_keyspace_and_schema_changes() -> None:
    assert result(responses.result(Void())).kind == 1
    assert result(responses.result(KeyspaceSet("ks"))).new_keyspace == "ks"
    table = SchemaChangeResult(SchemaChangeKind.UPDATED, "ks", "t")
    assert result(responses.result(table)).schema_change_event == {
        "change_type": "UPDATED",
        "target_type": "TABLE",
        "keyspace": "ks",
        "table": "t",
    }
    keyspace = SchemaChangeResult(SchemaChangeKind.DROPPED, "ks")
    assert result(responses.result(keyspace)).schema_change_event["target_type"] == "KEYSPACE"


def test_a_prepared_statement() -> None:
    variables = (spec("b", TEXT), spec("a", INT))
    found = result(
        responses.prepared(
            PreparedResult(id=b"id", variables=variables, key_positions=(1,), columns=(spec("c", INT),)), 4
        )
    )
    assert found.query_id == b"id"
    assert found.pk_indexes == [1]
    assert [(column.name, column.type.typename) for column in found.bind_metadata] == [("b", "varchar"), ("a", "int")]
    assert [column[2] for column in found.column_metadata] == ["c"]


def test_a_prepared_write_has_no_columns_and_version_3_no_key_positions() -> None:
    found = result(responses.prepared(PreparedResult(id=b"id", variables=(), key_positions=(), columns=()), 4))
    assert not found.column_metadata
    third = responses.prepared(PreparedResult(id=b"id", variables=(spec("a", INT),), key_positions=(0,), columns=()), 3)
    fourth = responses.prepared(
        PreparedResult(id=b"id", variables=(spec("a", INT),), key_positions=(0,), columns=()), 4
    )
    assert len(fourth) - len(third) == 4 + 2


def test_supported_options_as_drivers_read_them() -> None:
    body = responses.supported(supported_options(shard=1, shard_count=4, ignore_msb=12, shard_aware_port=19042))
    message = SupportedMessage.recv_body(io.BytesIO(body), 4, FEATURES, {}, None, None)
    assert message.cql_versions[0].startswith("3.")
    found = message.options
    assert found["COMPRESSION"] == ["lz4"]
    assert (found["SCYLLA_SHARD"], found["SCYLLA_NR_SHARDS"]) == (["1"], ["4"])
    assert found["SCYLLA_SHARDING_IGNORE_MSB"] == ["12"]
    assert found["SCYLLA_SHARD_AWARE_PORT"] == ["19042"]
    assert "TABLETS_ROUTING_V1" in found


def test_with_tls_the_shard_aware_port_is_the_one_for_tls() -> None:
    found = supported_options(shard=0, shard_count=1, ignore_msb=12, shard_aware_port=19042, is_tls=True)
    assert found["SCYLLA_SHARD_AWARE_PORT_SSL"] == ("19042",)
    assert "SCYLLA_SHARD_AWARE_PORT" not in found


# ---- errors


def test_too_few_replicas() -> None:
    found = error(errors.TooFewReplicas("2 are needed", required=2, alive=1), QUORUM).to_exception()
    assert isinstance(found, DriverUnavailable)
    assert (found.consistency, found.required_replicas, found.alive_replicas) == (QUORUM, 2, 1)


@pytest.mark.parametrize("write_type", WriteType)
def test_a_write_that_was_not_acknowledged_in_time(write_type: WriteType) -> None:
    failure = errors.WriteTimeout("too late", required=2, received=1)
    found = error(failure, QUORUM, write_type).to_exception()
    assert isinstance(found, DriverWriteTimeout)
    assert (found.required_responses, found.received_responses) == (2, 1)
    assert error(failure, QUORUM, write_type).info["write_type"] == ["SIMPLE", "BATCH", "UNLOGGED_BATCH"].index(
        write_type.value
    )


def test_a_read_that_was_not_answered_in_time() -> None:
    failure = errors.ReadTimeout("too late", required=2, received=1, has_data=True)
    found = error(failure, QUORUM).to_exception()
    assert isinstance(found, DriverReadTimeout)
    assert (found.required_responses, found.received_responses, found.data_retrieved) == (2, 1, True)


def test_replicas_that_refused() -> None:
    read = error(errors.ReadFailed("no", required=2, received=1, failed=3), QUORUM)
    assert (read.code, read.info["failures"]) == (CqlCode.READ_FAILURE, 3)
    write = error(errors.WriteFailed("no", required=2, received=0, failed=1), QUORUM)
    assert (write.code, write.info["required_responses"]) == (CqlCode.WRITE_FAILURE, 2)


def test_what_is_there_already_and_what_is_not_prepared() -> None:
    there = error(errors.AlreadyExists("it is there", keyspace="ks", table="t"))
    assert there.info == {"keyspace": "ks", "table": "t"}
    assert error(errors.Unprepared("who?", statement_id=b"\1\2")).info == b"\1\2"


@pytest.mark.parametrize("kind", CODES, ids=[kind.__name__ for kind in CODES])
def test_a_driver_reads_every_error(kind: type[EblaError]) -> None:
    failure = kind("words for people", advice="what to do")
    found = error(failure, QUORUM)
    assert "words for people" in found.message
    assert "what to do" in found.message
    assert found.code in {CODES[kind].cql_read, CODES[kind].cql_write}
    found.to_exception()


# ---- events


def test_events_as_drivers_read_them() -> None:
    found = event(responses.schema_event(SchemaChangeResult(SchemaChangeKind.CREATED, "ks", "t")))
    assert found.event_type == "SCHEMA_CHANGE"
    assert found.event_args["table"] == "t"
    for change in NodeChange:
        found = event(responses.node_event(change, b"\x7f\0\0\2", 9042))
        assert found.event_type == change.kind
        assert found.event_args == {"change_type": str(change), "address": ("127.0.0.2", 9042)}


def test_a_long_message_is_cut() -> None:
    assert len(responses.error(errors.InvalidRequest("x" * 100_000))) < 65_535 + 100
    assert notation.short_string("y" * 10)[2:] == b"y" * 10
