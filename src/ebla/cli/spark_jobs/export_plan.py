"""The manifest of an export: which token ranges are written, and which are missing. Pure.

Finished work is recorded as token ranges, and what they do not cover is missing. So an export resumes correctly after
tablets were split, merged or moved, and with another number of pieces.
"""

import enum
from collections.abc import Iterable, Sequence
from typing import ClassVar

import msgspec

from ebla.cli.spark_jobs.state_file import StateRecord
from ebla.cql.parse.token_stream import quote_name
from ebla.model.errors import InvalidRequest
from ebla.model.token import TOKEN_MAX, TOKEN_MIN, Token, TokenRange

MANIFEST = "_ebla_export.json"
"""Spark ignores files whose names start with an underscore."""
CHUNK_BYTES = 512 << 20
CHUNKS_MAX = 1_000


class FileKind(enum.StrEnum):
    PARQUET = "parquet"
    CSV = "csv"


class ExportChunk(msgspec.Struct, frozen=True):
    """The result of one Spark job."""

    range: TokenRange
    files: tuple[str, ...]
    rows: int


class ExportManifest(StateRecord, frozen=True, kw_only=True):
    FORMAT: ClassVar[int] = 1
    WHAT: ClassVar[str] = "the manifest of an export"
    ADVICE: ClassVar[str] = "name another folder"

    table: str
    table_id: str
    kind: FileKind
    chunks: tuple[ExportChunk, ...] = ()

    @property
    def rows(self) -> int:
        return sum(chunk.rows for chunk in self.chunks)

    @property
    def files(self) -> tuple[str, ...]:
        return tuple(name for chunk in self.chunks for name in chunk.files)

    def with_chunk(self, chunk: ExportChunk) -> "ExportManifest":
        return msgspec.structs.replace(self, chunks=(*self.chunks, chunk))


def check_same(found: ExportManifest, expected: ExportManifest) -> None:
    """An export resumes only with the same table and format."""
    if (found.table, found.kind) != (expected.table, expected.kind):
        raise InvalidRequest(
            f"the folder has an export of {found.table} as {found.kind}",
            advice="name another folder, or use the same table and format",
        )
    if found.table_id != expected.table_id:
        raise InvalidRequest(
            f"the folder has an export of a table {found.table} that was dropped since",
            advice="name another folder",
        )


def missing_ranges(covered: Iterable[TokenRange]) -> tuple[TokenRange, ...]:
    """The parts of the ring that none of these covers; lowest first."""
    left: list[TokenRange] = []
    reached = TOKEN_MIN
    for one in sorted(part for each in covered for part in each.unwrapped()):
        if one.start > reached:
            left.append(TokenRange(reached, one.start))
        reached = max(reached, one.end)
    if reached < TOKEN_MAX:
        left.append(TokenRange(reached, TOKEN_MAX))
    return tuple(left)


def chunk_count(size_bytes: int) -> int:
    """Chosen so that repeating a chunk costs minutes and not hours, and a small table is one job."""
    return min(max(1, -(-size_bytes // CHUNK_BYTES)), CHUNKS_MAX)


def split_ranges(ranges: Sequence[TokenRange], count: int) -> tuple[TokenRange, ...]:
    """About `count` pieces of about the same width. Tokens are spread evenly for any keys."""
    width = -(-sum(one.width for one in ranges) // max(count, 1))
    pieces: list[TokenRange] = []
    for one in ranges:
        pieces += one.split(max(1, -(-one.width // width)))
    return tuple(pieces)


def condition(token_range: TokenRange, partition_key: Sequence[str]) -> str:
    """For the option `where`, which limits the load whatever Spark plans."""
    token = f"token({', '.join(map(quote_name, partition_key))})"
    return f"{token} > {token_range.start} AND {token} <= {token_range.end}"


def file_prefix(token_range: TokenRange) -> str:
    """The prefix of a chunk's files: unique to the chunk, and sorted by token."""
    return f"{_hex_token(token_range.start)}-{_hex_token(token_range.end)}"


def _hex_token(token: Token) -> str:
    return f"{token - TOKEN_MIN:016x}"
