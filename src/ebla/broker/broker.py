"""The calls of jobs at a shard: read, bounded, carried out, and answered with what came of them.

Each call is bounded by the time that it names itself. So many run at once as a shard can serve beside its requests;
one more is told so at once.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any, TypeVar

import msgspec

from ebla.broker.adopt_calls import AdoptCalls
from ebla.broker.broker_deps import BrokerDeps
from ebla.broker.fresh_view import fresh_view
from ebla.broker.read_broker import TableReadBroker, schema_of
from ebla.broker.table_options import is_cdc_enabled
from ebla.broker.write_commit import WriteCommitDeps as CommitParts
from ebla.broker.write_commit import WriteCommits
from ebla.broker.write_opening import StagingOpener, WriteOpener, WriteSessions
from ebla.broker.write_record_store import WriteRecordStore
from ebla.model.errors import DeadlineExceeded, EblaError, InvalidRequest, NotFound, Overloaded
from ebla.model.identity import TableId
from ebla.transfers.deadline import Deadline
from ebla.wire.errors import failure_frame
from ebla.wire.frames import encode
from ebla.wire.table_calls import (
    ABORT_WRITE,
    CLOSE_READ,
    COMMIT_WRITE,
    DESCRIBE_TABLE,
    OPEN_READ,
    OPEN_WRITE,
    CallAnswer,
    CallRequest,
    DescribeTableAnswer,
    DescribeTableRequest,
    TableCall,
)

Q = TypeVar("Q", bound=msgspec.Struct)
A = TypeVar("A", bound=msgspec.Struct)

Serve = Callable[[bytes, Deadline], Awaitable[bytes]]

_requests = msgspec.msgpack.Decoder(CallRequest)
LATE_MS = 2_000
"""What a call may take to tell of its end, once its time is over."""


class TableBroker:
    """`cql.plan_call.TableCalls`."""

    def __init__(self, parts: BrokerDeps) -> None:
        self._parts = parts
        self._reads = TableReadBroker(parts)
        store, sessions, places = WriteRecordStore(parts), WriteSessions(parts), StagingOpener(parts)
        opening = WriteOpener(parts, store, sessions, places)
        commits = WriteCommits(
            CommitParts(broker=parts, store=store, sessions=sessions, places=places, adoptions=AdoptCalls(parts))
        )
        self._running = 0
        self._serve: Mapping[str, Serve] = dict(
            (
                _served(DESCRIBE_TABLE, self._describe),
                _served(OPEN_READ, self._reads.open),
                _served(CLOSE_READ, self._reads.close),
                _served(OPEN_WRITE, opening.open),
                _served(COMMIT_WRITE, commits.commit),
                _served(ABORT_WRITE, opening.abort),
            )
        )

    @property
    def names(self) -> Collection[str]:
        return self._serve.keys()

    @property
    def running(self) -> int:
        return self._running

    async def call(self, name: str, payload: bytes) -> bytes:
        try:
            return encode(CallAnswer(None, await self._bounded(name, payload)))
        except EblaError as error:
            return encode(CallAnswer(failure_frame(0, error)))

    async def _bounded(self, name: str, payload: bytes) -> bytes:
        limits = self._parts.limits
        try:
            asked = _requests.decode(payload)
        except msgspec.DecodeError as error:
            raise InvalidRequest(f"ebla.{name} was not given a request: {error}") from error
        if asked.deadline_ms <= 0:
            raise InvalidRequest(f"a call takes some time, not {asked.deadline_ms} ms")
        if self._running >= limits.calls_max:
            raise Overloaded(
                f"{self._running} calls of jobs run on this shard already",
                advice="nothing was begun; try again in a moment, or at another node",
            )
        within_ms = min(asked.deadline_ms, limits.call_ms_max)
        self._running += 1
        try:
            async with asyncio.timeout((within_ms + LATE_MS) / 1000):
                return await self._serve[name](asked.request, Deadline(within_ms))
        except TimeoutError:
            raise DeadlineExceeded(f"ebla.{name} did not end within {within_ms} ms") from None
        finally:
            self._running -= 1

    # ---- tables

    async def _describe(self, request: DescribeTableRequest, deadline: Deadline) -> DescribeTableAnswer:
        name = (request.keyspace, request.table)
        view = self._parts.view.current
        table: TableId | None = view.names.get(name)
        if table is None:  # it may be new
            view = await fresh_view(self._parts, deadline)
            table = view.names.get(name)
        if table is None:
            if request.keyspace not in view.snapshot.keyspaces:
                raise NotFound(f"there is no keyspace {request.keyspace!r}")
            raise NotFound(f"there is no table {request.table!r} in keyspace {request.keyspace!r}")
        schema = schema_of(view, table)
        return DescribeTableAnswer(schema, self._parts.authority(), is_cdc_enabled(schema))


def _served(call: TableCall[Q, A], serve: Callable[[Q, Deadline], Awaitable[A]]) -> tuple[str, Serve]:
    decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(call.request)

    async def decoded(data: bytes, deadline: Deadline) -> bytes:
        try:
            request = decoder.decode(data)
        except msgspec.DecodeError as error:
            raise InvalidRequest(
                f"what ebla.{call.name} was given cannot be read: {error}", advice="it comes from another release"
            ) from error
        return encode(await serve(request, deadline))

    return call.name, decoded
