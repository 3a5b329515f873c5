"""The rows of an input split: read from the files themselves where they are on this machine, else over Flight, and from
as many replicas at once as the consistency level needs."""

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import ExitStack
from types import TracebackType
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa

from ebla.model.errors import ConnectionLost, EblaError, InternalError, InvalidRequest
from ebla.model.selection import ColumnSelector, SelectorKind
from ebla.model.token import TokenRange
from ebla.source.read.failover import SourceFailed
from ebla.source.read.planner import InputSplit
from ebla.source.read.replica_merge import merge_replicas
from ebla.storage.codec.key_codec import decode_token, key_spans
from ebla.storage.scan.stack_scan import ScanQuery
from ebla.transfers.flight_client import FlightClient
from ebla.transfers.link_path import is_reachable_folder, is_same_machine
from ebla.wire.flight_format import byte_values
from ebla.wire.table_calls import CheckpointFiles, ReadSource
from ebla.wire.transfer_messages import LocateQuery, StoredRowsQuery, TypedRowsQuery

if TYPE_CHECKING:
    from ebla.source.read.local_scan import LocalScan

TOKEN_LABEL = "\0token"  # noqa: S105  # of the ring
"""No column has this name."""
SCANS_OPEN_MAX = 16
"""A split may cover two thousand tablets, each with its own files. The ranges of one tablet follow each other."""

RowsQuery = StoredRowsQuery | TypedRowsQuery


class TableFlightClient(FlightClient):
    """Reads tables over Flight with the tickets of a read. For one run of a job, and one thread of it."""

    def locate(self, source: ReadSource, token_range: TokenRange) -> CheckpointFiles:
        """Where the node has the files of the range."""
        batches = list(self.get_batches(source, LocateQuery(token_range)))
        if len(batches) != 1 or len(batches[0]) != 1:
            raise InternalError(f"{source.flight} did not say where its files are")
        return _locations.decode(byte_values(batches[0])[0])


_locations = msgspec.msgpack.Decoder(CheckpointFiles)


class SplitRows:
    """Open while the split is read."""

    def __init__(self, split: InputSplit, run: str = "") -> None:
        self._split = split
        self._columns = (*split.columns, ColumnSelector("", SelectorKind.TOKEN, TOKEN_LABEL))
        self._flight = TableFlightClient(split.authority, run=run)
        self._scans: OrderedDict[tuple[int, object], tuple[LocalScan, ExitStack]] = OrderedDict()
        """Open scans of local files, the most recently used last."""
        self._remote: set[int] = set()
        """Sources whose files cannot be read from here."""

    def __enter__(self) -> "SplitRows":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._close_scans(keep=0)
        self._flight.close()

    def open_rows(self, sources: tuple[int, ...], token_range: TokenRange) -> Iterator[pa.RecordBatch]:
        """`failover.OpenRows`."""
        split, partitions = self._split, self._partitions_in(token_range)
        if split.partitions and not partitions:
            return iter(())  # a query without partitions would read all of them
        if len(sources) == 1:
            query = TypedRowsQuery(
                range=token_range,
                columns=self._columns,
                now_s=split.now_s,
                conditions=split.conditions,
                partitions=partitions,
            )
            return self._read(sources[0], query)
        stored = StoredRowsQuery(range=token_range, conditions=split.conditions, partitions=partitions, by_column=True)
        merging = ScanQuery(
            schema=split.schema,
            columns=self._columns,
            now_s=split.now_s,
            spans=key_spans(token_range),
            conditions=split.conditions,
            partitions=partitions,
        )
        return merge_replicas(merging, [self._read(place, stored) for place in sources])

    def _partitions_in(self, token_range: TokenRange) -> tuple[bytes, ...]:
        """Those of the range, which does not wrap around the ring: a split may have thousands, and a query for each."""
        named = self._split.partitions
        start, end = (bisect_right(named, token, key=decode_token) for token in (token_range.start, token_range.end))
        return named[start:end]

    def _read(self, place: int, query: RowsQuery) -> Iterator[pa.RecordBatch]:
        try:
            local = self._read_locally(place, query)
            if local is None:
                yield from self._flight.get_batches(self._split.sources[place], query)
            else:
                yield from local
        except InvalidRequest:
            raise  # the query is wrong for every source
        except EblaError as error:
            self._remote.add(place)
            raise SourceFailed(place, error) from None
        except OSError as error:
            self._remote.add(place)
            raise SourceFailed(place, ConnectionLost(f"its files cannot be read: {error}")) from None

    def _read_locally(self, place: int, query: RowsQuery) -> Iterator[pa.RecordBatch] | None:
        """None: read it over Flight."""
        source = self._split.sources[place]
        if not self._split.uses_local_files or place in self._remote or not is_same_machine(source.machine):
            return None
        located = self._flight.locate(source, query.range)
        if not is_reachable_folder(located.machine, located.folder):
            self._remote.add(place)
            return None
        key = (place, located.stacks)
        if key not in self._scans:
            self._close_scans(keep=SCANS_OPEN_MAX - 1)
            opened = ExitStack()
            try:
                # Needs the storage engine's library, which executors may lack: then rows come over Flight.
                from ebla.source.read import local_scan

                self._scans[key] = opened.enter_context(local_scan.open_located(located)), opened
            except (ImportError, OSError, EblaError):
                self._remote.add(place)
                return None
        self._scans.move_to_end(key)
        scan, _ = self._scans[key]
        _, batches = scan(query)
        return batches

    def _close_scans(self, *, keep: int) -> None:
        while len(self._scans) > keep:
            _, (_, opened) = self._scans.popitem(last=False)
            opened.close()
