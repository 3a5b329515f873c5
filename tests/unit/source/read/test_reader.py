"""What a read asks for, by options and by a schema of the user's; and the two kinds of readers."""

import sys
import types
import uuid

import msgspec
import pytest
from pyspark.sql.datasource import DataSourceReader, EqualTo
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DecimalType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)
from tests.unit.source.cql_stand_in import Answer, StandIn, one_blob, ready

from ebla.model.cql_types import parse_type
from ebla.model.errors import InvalidRequest, NotFound
from ebla.model.identity import Address, HostId, TableId, TopologyVersion
from ebla.model.schema import Column, ColumnKind, new_schema
from ebla.model.selection import ColumnSelector, SelectorKind
from ebla.model.token import WHOLE_RING
from ebla.source import data_source
from ebla.source.options import ReadOptions, parse_read_options
from ebla.source.read.planner import ReadSpec, decode_split, plan_splits
from ebla.source.read.reader import PushdownReader, TableReader, columns_for_schema, requested_columns
from ebla.source.read.split_reader import at_current_time
from ebla.source.spark_types import spark_schema
from ebla.wire.cql import requests
from ebla.wire.cql.notation import BodyReader
from ebla.wire.errors import failure_frame
from ebla.wire.frames import encode
from ebla.wire.table_calls import (
    CallAnswer,
    CallRequest,
    DescribeTableAnswer,
    OpenReadRequest,
    ReadRange,
    ReadSource,
    TableReadPlan,
)

SCHEMA = new_schema(
    TableId(uuid.UUID(int=1)),
    "ks",
    "t",
    (
        Column(name="k", type=parse_type("int"), kind=ColumnKind.PARTITION_KEY),
        Column(name="c", type=parse_type("text"), kind=ColumnKind.CLUSTERING),
        Column(name="v", type=parse_type("bigint"), kind=ColumnKind.REGULAR),
        Column(name="tags", type=parse_type("set<text>"), kind=ColumnKind.REGULAR),
        Column(name="V2", type=parse_type("varint"), kind=ColumnKind.REGULAR),
    ),
)
SOURCE = ReadSource(host=HostId(uuid.UUID(int=9)), flight=Address("127.0.0.1", 7001), ticket=b"ticket")
PLAN = TableReadPlan(
    schema=SCHEMA,
    version=TopologyVersion(3),
    sources=(SOURCE,),
    pieces=(ReadRange(range=WHOLE_RING, sources=(0,), needed=1, size_bytes=1 << 20, rows=10),),
    authority=b"authority",
    now_s=1_000,
)


def options(**others: str) -> ReadOptions:
    return parse_read_options({"table": "ks.t", **others})


def struct(**fields: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in fields.items()])


def node(_opcode: int, body: bytes) -> Answer:
    """Knows one table."""
    text = requests.read_query(BodyReader(body)).text
    if "describe_table" in text:
        return one_blob(encode(CallAnswer(None, encode(DescribeTableAnswer(SCHEMA, b"authority")))))
    assert "open_read" in text
    return one_blob(encode(CallAnswer(None, encode(PLAN))))


# ---- columns


def test_all_columns_unless_said_otherwise() -> None:
    asked = requested_columns(SCHEMA, options())
    assert [one.label for one in asked] == ["k", "c", "V2", "tags", "v"]
    shown = "struct<k:int,c:string,V2:string,tags:array<string>,v:bigint>"
    assert spark_schema(SCHEMA, asked).simpleString() == shown


def test_those_that_are_named_and_what_is_told_of_them() -> None:
    asked = requested_columns(SCHEMA, options(columns="v,k", token="tok", writetime="v,V2", ttl="v"))
    assert asked == (
        ColumnSelector("v"),
        ColumnSelector("k"),
        ColumnSelector("", SelectorKind.TOKEN, "tok"),
        ColumnSelector("v", SelectorKind.WRITETIME, "v_writetime"),
        ColumnSelector("V2", SelectorKind.WRITETIME, "V2_writetime"),
        ColumnSelector("v", SelectorKind.TTL, "v_ttl"),
    )
    shown = "struct<v:bigint,k:int,tok:bigint,v_writetime:bigint,V2_writetime:bigint,v_ttl:int>"
    assert spark_schema(SCHEMA, asked).simpleString() == shown


@pytest.mark.parametrize(
    ("others", "words"),
    [
        ({"columns": "v,vv"}, "no column 'vv'; did you mean 'v'"),
        ({"writetime": "w"}, "no column 'w'"),
        ({"writetime": "k"}, "PRIMARY KEY part k"),
        ({"ttl": "tags"}, "non-frozen collection tags"),
        ({"token": "v"}, "'v'"),
        ({"columns": "v,v"}, "'v'"),
    ],
)
def test_what_cannot_be_asked_for(others: dict[str, str], words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        requested_columns(SCHEMA, options(**others))


def test_a_schema_chooses_columns_their_order_and_types() -> None:
    shown = struct(K=LongType(), v2=DecimalType(38, 0), tok=LongType(), tags=ArrayType(StringType()))
    assert columns_for_schema(SCHEMA, options(token="tok"), shown) == (
        ColumnSelector("k", alias="K"),
        ColumnSelector("V2", alias="v2"),
        ColumnSelector("", SelectorKind.TOKEN, "tok"),
        ColumnSelector("tags"),
    )


def test_a_schema_that_does_not_fit_is_told_of_wholly() -> None:
    shown = struct(k=StringType(), v=IntegerType(), v_ttl=StringType(), c=StringType())
    with pytest.raises(InvalidRequest) as found:
        columns_for_schema(SCHEMA, options(ttl="v"), shown)
    words = str(found.value)
    assert "k: a CQL int is read as int, bigint, not string" in words
    assert "v: a CQL bigint is read as bigint, not int" in words
    assert "v_ttl: it is a int" in words
    assert "c:" not in words


def test_a_schema_with_a_column_that_is_not_there() -> None:
    with pytest.raises(NotFound, match="no column 'tagz'; did you mean 'tags'"):
        columns_for_schema(SCHEMA, options(), struct(k=IntegerType(), tagz=ArrayType(StringType())))


# ---- readers


def test_a_plan_becomes_partitions_that_carry_all_they_need() -> None:
    with StandIn(ready(node)) as server:
        given = {"table": "ks.t", "contact": str(server.address), "password": "secret"}
        reader = data_source.make_reader(given, struct(v=LongType()))
        (partition,) = reader.partitions()
    assert type(reader) is TableReader
    share = decode_split(partition.value)
    assert share.columns == (ColumnSelector("v"),)
    assert share.sources == (SOURCE,)
    assert (share.authority, share.now_s) == (b"authority", 1_000)
    assert b"secret" not in partition.value


def test_what_expired_since_a_frame_was_planned_is_gone_when_it_is_used_again() -> None:
    (share,) = plan_splits(PLAN, ReadSpec(columns=(ColumnSelector("v"),)))
    assert at_current_time(share, 5_000.7) == msgspec.structs.replace(share, now_s=5_000)
    assert at_current_time(share, 900.0) == share, "the clock of an executor may be behind"


def test_a_reader_that_takes_filters_is_made_only_where_spark_asks_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    schema = struct(k=IntegerType(), c=StringType())
    with StandIn(ready(node)) as server:
        given = {"table": "ks.t", "contact": str(server.address)}

        def kind(**others: str) -> type[DataSourceReader]:
            return type(data_source.make_reader({**given, **others}, schema))

        assert [kind(), kind(pushdown="true")] == [TableReader, TableReader]
        monkeypatch.setitem(sys.modules, data_source.FILTERS_WORKER, types.ModuleType("worker"))
        assert [kind(), kind(pushdown="true")] == [TableReader, PushdownReader]
    assert TableReader.pushFilters is DataSourceReader.pushFilters, "else Spark refuses it where the setting is off"


def test_filters_that_are_taken_are_what_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, data_source.FILTERS_WORKER, types.ModuleType("worker"))
    with StandIn(ready(node)) as server:
        given = {"table": "ks.t", "contact": str(server.address), "pushdown": "true"}
        reader = data_source.make_reader(given, struct(k=IntegerType(), c=StringType(), v=LongType()))
        left = EqualTo(("v",), 5)
        assert list(reader.pushFilters([EqualTo(("k",), 1), left, EqualTo(("c",), "x")])) == [left]
        (partition,) = reader.partitions()
        asked = len(server.requests)
        nothing = data_source.make_reader(given, struct(k=IntegerType()))
        assert list(nothing.pushFilters([EqualTo(("k",), 1), EqualTo(("k",), 2)])) == []
        assert nothing.partitions() == []
        assert len(server.requests) == asked + 2, "a greeting and a description: no request for zero rows"
    share = decode_split(partition.value)
    assert [condition.column for condition in share.conditions] == ["c"]
    assert len(share.partitions) == 1


def test_conditions_of_the_load_go_to_the_nodes() -> None:
    with StandIn(ready(node)) as server:
        given = {"table": "ks.t", "contact": str(server.address), "where": "k IN (1, 2) AND c > 'x'"}
        (partition,) = data_source.make_reader(given, struct(v=LongType())).partitions()
        body = server.requests[-1][1]
    share = decode_split(partition.value)
    assert [condition.column for condition in share.conditions] == ["c"]
    assert len(share.partitions) == 2
    (call,) = requests.read_query(BodyReader(body)).parameters.values
    assert isinstance(call, bytes)
    opened = msgspec.msgpack.decode(msgspec.msgpack.decode(call, type=CallRequest).request, type=OpenReadRequest)
    assert len(opened.ranges) == 2, "only the nodes that have them are asked"


def test_a_table_that_is_not_there_is_told_with_those_that_are() -> None:
    missing = failure_frame(0, NotFound("no such table"))

    def empty_node(_opcode: int, body: bytes) -> Answer:
        text = requests.read_query(BodyReader(body)).text
        if "CALL" in text:
            return one_blob(encode(CallAnswer(missing)))
        return one_blob(b"orders") if "tables" in text else one_blob(b"shop")

    with StandIn(ready(empty_node)) as server:
        given = {"table": "shop.order", "contact": str(server.address)}
        with pytest.raises(NotFound, match=r"keyspace 'shop' has no table 'order'; did you mean 'orders'\?"):
            data_source.table_schema(given)
