"""Rows of two replicas compared, with a column of each type."""

import datetime
import uuid
from typing import Any

import pyarrow as pa
import pytest
from tests.unit.storage.random_rows import column, table

from ebla.model.cql_types import Scalar, ScalarType
from ebla.model.schema import ColumnKind
from ebla.storage.columns.arrow_types import arrow_type
from ebla.storage.columns.chunks import chunk_of, whole_shape
from ebla.storage.columns.load_encoding import WriteStamp, encode_upserts
from ebla.storage.merge.chunk_merge import same_rows

DAY = datetime.date(2026, 1, 2)
VALUES: dict[Scalar, tuple[Any, Any]] = {
    Scalar.ASCII: ("a", "b"),
    Scalar.BIGINT: (1, 2),
    Scalar.BLOB: (b"", b"\0"),
    Scalar.BOOLEAN: (True, False),
    Scalar.DATE: (DAY, DAY.replace(day=3)),
    Scalar.DECIMAL: ("1.0", "1.00"),
    Scalar.DOUBLE: (0.0, -0.0),
    Scalar.DURATION: (pa.MonthDayNano([1, 2, 3]), pa.MonthDayNano([1, 2, 4])),
    Scalar.FLOAT: (float("nan"), 1.0),
    Scalar.INET: ("::1", "127.0.0.1"),
    Scalar.INT: (1, 2),
    Scalar.SMALLINT: (1, 2),
    Scalar.TEXT: ("", "a"),
    Scalar.TIME: (1, 2),
    Scalar.TIMESTAMP: (1, 2),
    Scalar.TIMEUUID: (uuid.uuid1(1, 1).bytes, uuid.uuid1(2, 1).bytes),
    Scalar.TINYINT: (1, 2),
    Scalar.UUID: (uuid.UUID(int=1 << 76).bytes, uuid.UUID(int=2).bytes),
    Scalar.VARINT: ("1", "-1"),
}


@pytest.mark.parametrize("scalar", list(Scalar))
def test_values_of_each_type(scalar: Scalar) -> None:
    schema = table(column("p", "int", ColumnKind.PARTITION_KEY), column("v", scalar.value))
    shape, kind = whole_shape(schema), arrow_type(ScalarType(scalar))
    one, other = VALUES[scalar]

    def chunk(values: list[Any]) -> pa.RecordBatch:
        batch = pa.record_batch({"p": pa.array(range(len(values)), pa.int32()), "v": pa.array(values, kind)})
        return chunk_of(shape, *encode_upserts(schema, batch, WriteStamp(timestamp_us=1_000, at_s=1)))

    found = same_rows(shape, chunk([one, one, None, None]), chunk([one, other, None, one]))
    assert found.tolist() == [True, False, True, False]
