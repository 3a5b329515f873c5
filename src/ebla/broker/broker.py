"""Serves the calls of Spark jobs at a shard: `CALL ebla.<name>(?)` over CQL.

Each call has a deadline that it names itself. A shard runs a limited number of them beside its requests, and refuses
more at once.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any, TypeVar

import msgspec

from ebla.broker.broker_deps import BrokerDeps
from ebla.broker.read_broker import TableReadBroker, is_cdc_enabled, schema_of
from ebla.broker.write_commit import WriteCommits
from ebla.broker.write_opening import WriteOpener
from ebla.model.errors import DeadlineExceeded, EblaError, InvalidRequest, NotFound, Overloaded
from ebla.model.identity import TableId
from ebla.model.records.write_jobs import WriteJobRecord
from ebla.transfers.deadline import Deadline
from ebla.transfers.record_store import RecordStore
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

ServeCall = Callable[[bytes, Deadline], Awaitable[bytes]]

_requests = msgspec.msgpack.Decoder(CallRequest)
GRACE_MS = 2_000
"""How long a call may take to report its end after its deadline."""


class TableBroker:
    """`cql.plan.call_plan.CallService`."""

    def __init__(self, deps: BrokerDeps) -> None:
        self._deps = deps
        reads = TableReadBroker(deps)
        client = deps.transfer_client()
        records = RecordStore(deps.cluster.control, WriteJobRecord, deps.limits.group0_ms)
        opener = WriteOpener(deps, records, client)
        commits = WriteCommits(deps, records, client)
        self._running = 0
        self._serve: Mapping[str, ServeCall] = dict(
            (
                _served(DESCRIBE_TABLE, self._describe),
                _served(OPEN_READ, reads.open),
                _served(CLOSE_READ, reads.close),
                _served(OPEN_WRITE, opener.open),
                _served(COMMIT_WRITE, commits.commit),
                _served(ABORT_WRITE, opener.abort),
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
        limits = self._deps.node
        try:
            request = _requests.decode(payload)
        except msgspec.DecodeError as error:
            raise InvalidRequest(f"the argument of ebla.{name} is not a request: {error}") from error
        if request.deadline_ms <= 0:
            raise InvalidRequest(f"the deadline of a call must be positive, not {request.deadline_ms} ms")
        if self._running >= limits.table_calls_max:
            raise Overloaded(
                f"{self._running} calls of jobs run on this shard already",
                advice="nothing was begun; try again in a moment, or at another node",
            )
        within_ms = min(request.deadline_ms, limits.table_call_ms_max)
        self._running += 1
        try:
            async with asyncio.timeout((within_ms + GRACE_MS) / 1000):
                return await self._serve[name](request.request, Deadline(within_ms))
        except TimeoutError:
            raise DeadlineExceeded(f"ebla.{name} did not end within {within_ms} ms") from None
        finally:
            self._running -= 1

    async def _describe(self, request: DescribeTableRequest, deadline: Deadline) -> DescribeTableAnswer:
        name = (request.keyspace, request.table)
        view = self._deps.view.current
        table: TableId | None = view.names.get(name)
        if table is None:  # it may be new
            view = await self._deps.fresh_view(deadline)
            table = view.names.get(name)
        if table is None:
            if request.keyspace not in view.snapshot.keyspaces:
                raise NotFound(f"there is no keyspace {request.keyspace!r}")
            raise NotFound(f"there is no table {request.table!r} in keyspace {request.keyspace!r}")
        schema = schema_of(view, table)
        return DescribeTableAnswer(schema, self._deps.authority(), is_cdc_enabled(schema))


def _served(call: TableCall[Q, A], serve: Callable[[Q, Deadline], Awaitable[A]]) -> tuple[str, ServeCall]:
    decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(call.request)

    async def decoded(data: bytes, deadline: Deadline) -> bytes:
        try:
            request = decoder.decode(data)
        except msgspec.DecodeError as error:
            raise InvalidRequest(
                f"the request of ebla.{call.name} cannot be decoded: {error}", advice="it comes from another release"
            ) from error
        return encode(await serve(request, deadline))

    return call.name, decoded
