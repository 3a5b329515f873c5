"""Messages between routers and replicas. Clients read and write rows over CQL only.

Keys and values travel in stored form. A request names the version of the topology it was routed by, and is fenced by it
on arrival, just before its effect and again after it.
"""

import msgspec

from ebla.model.identity import SessionId, TableId, TopologyVersion

Item = tuple[bytes, bytes]
Span = tuple[bytes, bytes | None]
"""From a key up to and without another; None: to the end."""


class RowWrite(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Items of one partition, for one replica."""

    version: TopologyVersion
    table: TableId
    items: tuple[Item, ...]


class WriteRowsRequest(msgspec.Struct, frozen=True, array_like=True):
    """Writes of many requests that go to one replica shard together; each stands for itself."""

    writes: tuple[RowWrite, ...]


class WriteFailure(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """One write of a batch that is not acknowledged. Error and outcome as in a `Failure` frame."""

    index: int
    error: str
    outcome: str
    message: str
    advice: str = ""


class WriteRowsAnswer(msgspec.Struct, frozen=True, array_like=True):
    """All writes that are not named here are acknowledged."""

    failures: tuple[WriteFailure, ...] = ()


class ReadRowsRequest(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """The stored items of these spans, ascending and apart from each other; for a reversed read they are read from the
    last key to the first."""

    version: TopologyVersion
    table: TableId
    spans: tuple[Span, ...]
    rows_max: int
    """Rows that are live at `now_s`; the page ends with the one that makes the number full."""
    now_s: int
    gc_before_s: int = 0
    """Tombstones and expired cells from before that are no part of a digest."""
    is_reversed: bool = False
    digest_only: bool = False
    partition_rows_max: int = 0
    """Live rows of each partition; 0: all."""
    bytes_max: int = 1 << 20


class ReadRowsAnswer(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    items: tuple[Item, ...]
    """Merged rows and heads in the order of the read, tombstones among them; empty where only the digest was wanted."""
    digest: bytes
    is_whole: bool
    """The spans are read to their end; otherwise nothing is said of keys beyond `last_key`."""
    last_key: bytes = b""
    live_rows: int = 0


class StreamRowsRequest(msgspec.Struct, frozen=True, array_like=True):
    """Items of one table merged into this shard's replicas for an operation, under a guard of its session."""

    session: SessionId
    table: TableId
    items: tuple[Item, ...]
