"""The remaining work of an import, and the errors before anything is written."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebla.cli.spark_jobs.export_plan import FileKind
from ebla.cli.spark_jobs.import_plan import (
    ImportState,
    InputFile,
    check_columns,
    check_same,
    chosen_files,
    chunks_of,
    kind_of,
)
from ebla.cli.spark_jobs.state_file import decode_state_record, encode_state_record
from ebla.model.errors import InvalidRequest, Refused

FILES = (InputFile("a.parquet", 10), InputFile("b.parquet", 20), InputFile("c.parquet", 5))
STATE = ImportState(
    format=ImportState.FORMAT,
    id="f00",
    table="shop.orders",
    table_id="id",
    kind=FileKind.PARQUET,
    chunks=(FILES[:2], FILES[2:]),
)


@given(st.lists(st.integers(0, 100), min_size=1, max_size=30))
def test_every_file_is_in_one_chunk_and_chunks_are_bounded(sizes: list[int]) -> None:
    files = [InputFile(str(number), size) for number, size in enumerate(sizes)]
    chunks = chunks_of(files, 100)
    assert [one for chunk in chunks for one in chunk] == files
    assert all(sum(one.size_bytes for one in chunk) <= 100 for chunk in chunks)


def test_a_file_that_is_too_large_is_a_chunk_of_its_own() -> None:
    large = InputFile("l", 1_000)
    assert chunks_of([InputFile("s", 1), large, InputFile("t", 1)], 100) == (
        (InputFile("s", 1),),
        (large,),
        (InputFile("t", 1),),
    )


def test_an_import_goes_on_with_what_is_left() -> None:
    begun = STATE.with_done(0)
    assert (STATE.left, begun.left, begun.is_whole) == ((0, 1), (1,), False)
    assert begun.with_done(1).is_whole
    assert STATE.job(0) == begun.job(0) != begun.job(1), "a chunk keeps its job, and no other has it"
    assert decode_state_record(ImportState, encode_state_record(begun), "x") == begun


@pytest.mark.parametrize("data", [b"[]", b'{"format": 1}'])
def test_another_file_is_no_note(data: bytes) -> None:
    with pytest.raises(Refused, match="somewhere is not the state file"):
        decode_state_record(ImportState, data, "somewhere")


def test_other_files_are_not_gone_on_with() -> None:
    other_cut = msgspec.structs.replace(STATE, chunks=(FILES,))
    check_same(STATE, other_cut)
    grown = msgspec.structs.replace(STATE, chunks=((*FILES[:2], InputFile("c.parquet", 6)),))
    with pytest.raises(InvalidRequest, match=r"not the same .* --again"):
        check_same(STATE, grown)
    with pytest.raises(InvalidRequest, match="dropped since"):
        check_same(STATE, msgspec.structs.replace(STATE, table_id="newer"))


def test_the_kind_is_that_of_the_files() -> None:
    assert kind_of(["x/a.csv", "_SUCCESS"], None, "d") is FileKind.CSV
    assert kind_of(["a.csv", "a.parquet"], FileKind.PARQUET, "d") is FileKind.PARQUET
    with pytest.raises(InvalidRequest, match=r"both kinds.*--format"):
        kind_of(["a.csv", "a.parquet"], None, "d")
    with pytest.raises(InvalidRequest, match=r"neither \.parquet nor \.csv"):
        kind_of(["notes.txt"], None, "d")


def test_notes_of_others_are_no_input() -> None:
    hidden = [InputFile("_ebla/a.csv", 1), InputFile(".b.csv", 1), InputFile("x/.hidden/c.csv", 1)]
    kept = [InputFile("b.csv", 1), InputFile("x/a.csv.gz", 1)]
    assert chosen_files([*hidden, *reversed(kept), InputFile("d.parquet", 1)], FileKind.CSV, "d") == kept
    with pytest.raises(InvalidRequest, match=r"d has no parquet files; they end in \.parquet"):
        chosen_files(hidden, FileKind.PARQUET, "d")


def test_columns_are_those_of_the_table() -> None:
    known, keys = ["k", "c", "v"], ["k", "c"]
    check_columns(["c", "k"], known, keys)
    with pytest.raises(InvalidRequest, match="no column 'w'; it has k, c, v"):
        check_columns(["k", "c", "w"], known, keys)
    with pytest.raises(InvalidRequest, match="lack 'c' of the table's primary key"):
        check_columns(["k", "v"], known, keys)
    with pytest.raises(InvalidRequest, match="two columns 'v'"):
        check_columns(["k", "c", "v", "v"], known, keys)
