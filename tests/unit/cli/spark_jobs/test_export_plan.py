"""The remaining work of an export, from its manifest."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebla.cli.spark_jobs.export_plan import (
    CHUNK_BYTES,
    CHUNKS_MAX,
    ExportChunk,
    ExportManifest,
    FileKind,
    check_same,
    chunk_count,
    condition,
    file_prefix,
    missing_ranges,
    split_ranges,
)
from ebla.cli.spark_jobs.state_file import decode_state_record, encode_state_record
from ebla.model.errors import InvalidRequest, Refused
from ebla.model.token import TOKEN_MAX, TOKEN_MIN, WHOLE_RING, Token, TokenRange

MANIFEST = ExportManifest(format=ExportManifest.FORMAT, table="shop.orders", table_id="id", kind=FileKind.PARQUET)
tokens = st.integers(TOKEN_MIN, TOKEN_MAX).map(Token)
ranges = st.builds(TokenRange, tokens, tokens)


def test_nothing_done_is_all_missing() -> None:
    assert missing_ranges([]) == (WHOLE_RING,)
    assert missing_ranges([WHOLE_RING]) == ()


@given(st.lists(ranges, max_size=6), st.lists(tokens, max_size=20))
def test_what_is_missing_is_what_nothing_covers(covered: list[TokenRange], looked_at: list[Token]) -> None:
    left = missing_ranges(covered)
    ends = [end for one in covered for end in (one.start, one.end)]
    for token in (*looked_at, *ends):
        if token != TOKEN_MIN:  # no key has it
            assert any(token in one for one in left) != any(token in one for one in covered)


@given(st.lists(ranges, max_size=4), st.integers(1, 40))
def test_pieces_are_the_whole_once(covered: list[TokenRange], count: int) -> None:
    left = missing_ranges(covered)
    pieces = split_ranges(left, count)
    assert sum(piece.width for piece in pieces) == sum(one.width for one in left)
    assert missing_ranges([*covered, *pieces]) == ()
    assert len(pieces) <= count + len(left)
    assert len({file_prefix(piece) for piece in pieces}) == len(pieces)


def test_an_export_goes_on_by_other_pieces() -> None:
    """Tablets were split, or another number of pieces was requested."""
    done = WHOLE_RING.split(3)[1]
    pieces = split_ranges(missing_ranges([done]), 8)
    assert missing_ranges([done, *pieces]) == ()
    assert not any(piece.overlaps(done) for piece in pieces)


def test_a_small_table_is_one_piece_and_a_large_one_is_bounded() -> None:
    assert chunk_count(0) == chunk_count(CHUNK_BYTES) == 1
    assert chunk_count(CHUNK_BYTES + 1) == 2
    assert chunk_count(1 << 60) == CHUNKS_MAX


def test_a_manifest_is_read_as_it_was_written() -> None:
    manifest = MANIFEST.with_chunk(ExportChunk(WHOLE_RING, ("a.parquet",), 7))
    assert decode_state_record(ExportManifest, encode_state_record(manifest), "x") == manifest
    assert (manifest.rows, manifest.files) == (7, ("a.parquet",))


@pytest.mark.parametrize("data", [b"", b"{}", b'{"format": 99, "table": "a", "table_id": "b", "kind": "csv"}'])
def test_another_file_is_no_manifest(data: bytes) -> None:
    with pytest.raises(Refused, match="somewhere"):
        decode_state_record(ExportManifest, data, "somewhere")


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (
            ExportManifest(format=ExportManifest.FORMAT, table="shop.other", table_id="id", kind=FileKind.PARQUET),
            "shop.other as parquet",
        ),
        (
            ExportManifest(format=ExportManifest.FORMAT, table="shop.orders", table_id="id", kind=FileKind.CSV),
            "shop.orders as csv",
        ),
        (
            ExportManifest(format=ExportManifest.FORMAT, table="shop.orders", table_id="older", kind=FileKind.PARQUET),
            "dropped since",
        ),
    ],
)
def test_another_export_is_not_gone_on_with(found: ExportManifest, words: str) -> None:
    check_same(MANIFEST, MANIFEST)
    with pytest.raises(InvalidRequest, match=words):
        check_same(found, MANIFEST)


def test_a_piece_is_asked_for_by_its_tokens() -> None:
    asked = condition(TokenRange(TOKEN_MIN, Token(5)), ["k", "Upper"])
    assert asked == f'token(k, "Upper") > {TOKEN_MIN} AND token(k, "Upper") <= 5'
