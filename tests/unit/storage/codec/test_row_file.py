"""Rows in records: what was appended is read again, and what was not is noticed."""

from collections.abc import Sequence
from contextlib import aclosing

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.journal.on_disks import Machine

from ebla.model.errors import Corruption, TooLarge
from ebla.sim.disk import ProcessDisk
from ebla.storage.codec.row_file import (
    RECORD_BYTES_MAX,
    RECORD_HEADER_BYTES,
    decode_records,
    encode_rows,
    items_of,
    read_header,
    read_row_file,
    rows_batch,
    whole_records_bytes,
)
from ebla.storage.layers.layer import Item

PATH = "/data/rows"
RECORDS: list[list[Item]] = [[(b"a", b"1"), (b"b", b"")], [(b"c", b"3" * 100)]]
BYTES = b"".join(encode_rows(rows_batch(items)) for items in RECORDS)
ITEMS = st.lists(st.tuples(st.binary(max_size=20), st.binary(max_size=40)), min_size=1, max_size=20)


async def read(disk: ProcessDisk, data: bytes) -> list[list[Item]]:
    file = disk.create(PATH)
    file.append(data)
    file.close()
    async with aclosing(read_row_file(disk, PATH)) as batches:
        return [items_of(batch) async for batch in batches]


def read_back(data: bytes) -> list[list[Item]]:
    return Machine(1).run(lambda disk: read(disk, data))


@settings(max_examples=50, deadline=None)
@given(records=st.lists(ITEMS, max_size=5))
def test_what_was_appended_is_read_again(records: Sequence[list[Item]]) -> None:
    data = b"".join(encode_rows(rows_batch(items)) for items in records)
    assert [items_of(batch) for batch in decode_records(data)] == list(records)
    assert read_back(data) == list(records)


def test_columns_of_other_binary_types_are_taken_too() -> None:
    columns = [pa.array([b"k"], pa.large_binary()), pa.array([b"v"], pa.large_binary())]
    data = encode_rows(pa.RecordBatch.from_arrays(columns, names=["key", "value"]))
    assert data == encode_rows(rows_batch([(b"k", b"v")]))


def test_a_head_tells_how_long_its_record_is() -> None:
    first = read_header(BYTES[:RECORD_HEADER_BYTES])
    second = read_header(BYTES[first.record_bytes :][:RECORD_HEADER_BYTES])
    assert first.rows == 2
    assert first.record_bytes + second.record_bytes == len(BYTES)


def test_every_changed_byte_is_noticed() -> None:
    for place in range(len(BYTES)):
        changed = bytearray(BYTES)
        changed[place] ^= 0x41
        with pytest.raises(Corruption):
            list(decode_records(bytes(changed)))


def test_a_file_that_ends_within_a_record_is_not_whole_and_tells_where_to_go_on() -> None:
    first = read_header(BYTES).record_bytes
    for size in range(len(BYTES)):
        if size not in (0, first):
            with pytest.raises(Corruption, match="ends within a record"):
                read_back(BYTES[:size])

        async def whole(disk: ProcessDisk, size: int = size) -> int:
            file = disk.create(PATH)
            file.append(BYTES[:size])
            return whole_records_bytes(file)

        assert Machine(1).run(whole) == (first if size >= first else 0)


def test_a_record_over_the_bound_is_refused() -> None:
    with pytest.raises(TooLarge):
        encode_rows(rows_batch([(b"k", bytes(RECORD_BYTES_MAX))]))
