"""What an export has written and what it still has to: the manifest in its folder. Pure.

What is done is kept as ranges of tokens, and what is missing is what they do not cover: an export goes on rightly
though tablets were split, merged or moved, or another number of pieces is asked for.
"""

import enum
from collections.abc import Iterable, Sequence
from typing import ClassVar

import msgspec

from ebla.cli.spark_jobs.state_format import StateRecord
from ebla.cql.create_statements import quote_name
from ebla.model.errors import InvalidRequest
from ebla.model.token import TOKEN_MAX, TOKEN_MIN, Token, TokenRange

MANIFEST = "_ebla_export.json"
"""Spark leaves out files whose names begin so."""
CHUNK_BYTES = 512 << 20
CHUNKS_MAX = 1_000


class FileKind(enum.StrEnum):
    PARQUET = "parquet"
    CSV = "csv"


class ExportChunk(msgspec.Struct, frozen=True):
    """One Spark job's worth: read, written and named at once."""

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


def check_same(found: ExportManifest, wanted: ExportManifest) -> None:
    """An export goes on only as what it was begun as."""
    if (found.table, found.kind) != (wanted.table, wanted.kind):
        raise InvalidRequest(
            f"the folder has an export of {found.table} as {found.kind}",
            advice="name another folder, or ask for the same",
        )
    if found.table_id != wanted.table_id:
        raise InvalidRequest(
            f"the folder has an export of a table {found.table} that was dropped since",
            advice="name another folder",
        )


def missing(covered: Iterable[TokenRange]) -> tuple[TokenRange, ...]:
    """Of the ring, what none of these has; lowest first."""
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
    """So that a chunk that is done again costs minutes and not hours, and a small table is one job."""
    return min(max(1, -(-size_bytes // CHUNK_BYTES)), CHUNKS_MAX)


def cut(ranges: Sequence[TokenRange], count: int) -> tuple[TokenRange, ...]:
    """About `count` pieces of about the same width: tokens are spread evenly, whatever the keys are."""
    width = -(-sum(one.width for one in ranges) // max(count, 1))
    pieces: list[TokenRange] = []
    for one in ranges:
        pieces += one.split(max(1, -(-one.width // width)))
    return tuple(pieces)


def condition(within: TokenRange, partition_key: Sequence[str]) -> str:
    """For the option `where`: a piece is a part of its load, whatever Spark plans."""
    token = f"token({', '.join(map(quote_name, partition_key))})"
    return f"{token} > {within.start} AND {token} <= {within.end}"


def file_prefix(within: TokenRange) -> str:
    """Of the files of a chunk: no other chunk has it, and they sort by token."""
    return f"{_shown(within.start)}-{_shown(within.end)}"


def _shown(token: Token) -> str:
    return f"{token - TOKEN_MIN:016x}"
