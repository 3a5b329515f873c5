"""Messages between routers and replicas. Clients read and write rows over CQL only.

Keys and values travel in stored form. A request names the version of the topology it was routed by, and is fenced by it
on arrival, just before its effect and again after it.
"""

import msgspec

from ebla.model.identity import SessionId, TableId, TopologyVersion

Item = tuple[bytes, bytes]
Span = tuple[bytes, bytes | None]
"""From a key (included) to another (excluded); None: to the end."""


class RowWrite(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Items of one partition, for one replica."""

    version: TopologyVersion
    table: TableId
    items: tuple[Item, ...]


class WriteRowsRequest(msgspec.Struct, frozen=True, array_like=True):
    """Writes of many requests for one replica shard; each has its own outcome."""

    writes: tuple[RowWrite, ...]


class WriteFailure(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """One write of a batch that is not acknowledged. Error and outcome as in a `FailureFrame`."""

    index: int
    error: str
    outcome: str
    message: str
    advice: str = ""


class WriteRowsAnswer(msgspec.Struct, frozen=True, array_like=True):
    """All writes without a failure here are acknowledged."""

    failures: tuple[WriteFailure, ...] = ()


class ReadRowsRequest(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """The stored items of these spans, which are ascending and do not touch. A reversed read goes from the last key to
    the first."""

    version: TopologyVersion
    table: TableId
    spans: tuple[Span, ...]
    rows_max: int
    """Rows that are live at `now_s`; the page ends with the one that reaches this number."""
    now_s: int
    gc_before_s: int = 0
    """Tombstones and expired cells from before this time are left out of the digest."""
    is_reversed: bool = False
    digest_only: bool = False
    partition_rows_max: int = 0
    """Live rows of each partition; 0: all."""
    bytes_max: int = 1 << 20
    with_digest: bool = True
    """False: nothing is compared, and the answer's digest is empty."""


class ReadRowsAnswer(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    items: tuple[Item, ...]
    """Merged rows and heads in the order of the read, including tombstones; empty if only the digest was requested."""
    digest: bytes
    is_whole: bool
    """The spans were read to their end; otherwise nothing is known about keys beyond `last_key`."""
    last_key: bytes = b""
    live_rows: int = 0


class StreamRowsRequest(msgspec.Struct, frozen=True, array_like=True):
    """Items of one table merged into this shard's replicas for an operation, under a guard of its session."""

    session: SessionId
    table: TableId
    items: tuple[Item, ...]
