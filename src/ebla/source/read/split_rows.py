"""The rows of a task's share: from the files themselves where they are on this machine, else over Flight; of as many
sources at once as the level needs."""

import importlib
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import ExitStack
from types import TracebackType
from typing import Any

import pyarrow as pa

from ebla.model.errors import ConnectionLost, EblaError, InvalidRequest
from ebla.model.selection import ColumnSelector, SelectorKind
from ebla.model.token import TokenRange
from ebla.source.read.failover import SourceFailed
from ebla.source.read.planner import InputSplit
from ebla.source.read.replica_merge import merge_replicas
from ebla.source.read.table_flight_client import TableFlightClient
from ebla.storage.codec.key_codec import decode_token, key_spans
from ebla.storage.scan.stack_scan import ScanQuery
from ebla.transfers.link_path import is_reachable_folder, is_same_machine
from ebla.wire.transfer_messages import StoredRowsQuery, TypedRowsQuery

TOKEN_LABEL = "\0token"  # noqa: S105  # of the ring
"""No column is named so."""
SCANS_OPEN_MAX = 16
"""A share may be of two thousand tablets, each with files of its own; pieces of one tablet follow one another."""

_Asked = StoredRowsQuery | TypedRowsQuery


class SplitRows:
    """Open while the share is read."""

    def __init__(self, share: InputSplit, run: str = "") -> None:
        self._share = share
        self._columns = (*share.columns, ColumnSelector("", SelectorKind.TOKEN, TOKEN_LABEL))
        self._flight = TableFlightClient(share.authority, run)
        self._scans: OrderedDict[tuple[int, object], tuple[Any, ExitStack]] = OrderedDict()
        """Those of files that were read, the last used last."""
        self._remote: set[int] = set()
        """Sources whose files cannot be read from here."""

    def __enter__(self) -> "SplitRows":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._keep_scans(0)
        self._flight.close()

    def of(self, sources: tuple[int, ...], token_range: TokenRange) -> Iterator[pa.RecordBatch]:
        """`follow_piece.OpenRows`."""
        share, partitions = self._share, self._partitions_in(token_range)
        if share.partitions and not partitions:
            return iter(())  # to ask for none of them would be to ask for all there are
        if len(sources) == 1:
            query = TypedRowsQuery(
                range=token_range,
                columns=self._columns,
                now_s=share.now_s,
                conditions=share.conditions,
                partitions=partitions,
            )
            return self._from(sources[0], query)
        stored = StoredRowsQuery(range=token_range, conditions=share.conditions, partitions=partitions, by_column=True)
        merging = ScanQuery(
            schema=share.schema,
            columns=self._columns,
            now_s=share.now_s,
            spans=key_spans(token_range),
            conditions=share.conditions,
            partitions=partitions,
        )
        return merge_replicas(merging, [self._from(place, stored) for place in sources])

    def _partitions_in(self, token_range: TokenRange) -> tuple[bytes, ...]:
        """Those of the range, which does not go over the top: a share may have thousands, and a question for each."""
        named = self._share.partitions
        start, end = (bisect_right(named, token, key=decode_token) for token in (token_range.start, token_range.end))
        return named[start:end]

    def _from(self, place: int, query: _Asked) -> Iterator[pa.RecordBatch]:
        try:
            local = self._local(place, query)
            if local is None:
                yield from self._flight.get_table_rows(self._share.sources[place], query)
            else:
                yield from local
        except InvalidRequest:
            raise  # the question is wrong, whoever is asked
        except EblaError as error:
            self._remote.add(place)
            raise SourceFailed(place, error) from None
        except OSError as error:
            self._remote.add(place)
            raise SourceFailed(place, ConnectionLost(f"its files cannot be read: {error}")) from None

    def _local(self, place: int, query: _Asked) -> Iterator[pa.RecordBatch] | None:
        """None where it goes over Flight."""
        source = self._share.sources[place]
        if not self._share.uses_local_files or place in self._remote or not is_same_machine(source.machine):
            return None
        located = self._flight.locate(source, query.range)
        if not is_reachable_folder(located.machine, located.folder):
            self._remote.add(place)
            return None
        key = (place, located.stacks)
        if key not in self._scans:
            self._keep_scans(SCANS_OPEN_MAX - 1)
            opened = ExitStack()
            try:
                # It needs the storage engine's library, which executors need not have: then there is no short cut.
                open_located = importlib.import_module("ebla.source.read.local_scan").open_located
                self._scans[key] = opened.enter_context(open_located(located)), opened
            except (ImportError, OSError, EblaError):
                self._remote.add(place)
                return None
        self._scans.move_to_end(key)
        _, batches = self._scans[key][0].ask(query)
        found: Iterator[pa.RecordBatch] = batches
        return found

    def _keep_scans(self, count: int) -> None:
        while len(self._scans) > count:
            _, (_, opened) = self._scans.popitem(last=False)
            opened.close()
