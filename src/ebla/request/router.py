"""The router of a shard: requests of clients, by the replicas that the topology names."""

import asyncio
from collections.abc import Sequence

from ebla.model.consistency import ConsistencyLevel
from ebla.request.read_router import ReadRouter
from ebla.request.router_types import Mutation, ReadPage, ReadQuery, RouterDeps
from ebla.request.timestamps import TimestampGenerator
from ebla.request.write_router import WriteRouter


class Router:
    def __init__(self, parts: RouterDeps) -> None:
        self.parts = parts
        self.timestamps = TimestampGenerator(parts.clock)
        self.writes = WriteRouter(parts)
        self.reads = ReadRouter(parts)

    async def write(self, mutations: Sequence[Mutation], level: ConsistencyLevel, timeout_ms: int) -> None:
        """See `RoutedWrites.write`."""
        await self.writes.write(mutations, level, timeout_ms)

    def begin_write(
        self, mutations: Sequence[Mutation], level: ConsistencyLevel, timeout_ms: int
    ) -> "asyncio.Future[None]":
        """See `RoutedWrites.begin`."""
        return self.writes.begin(mutations, level, timeout_ms)

    async def read(self, query: ReadQuery, level: ConsistencyLevel, timeout_ms: int) -> ReadPage:
        """See `RoutedReads.read`."""
        return await self.reads.read(query, level, timeout_ms)

    def try_read(self, query: ReadQuery, level: ConsistencyLevel) -> ReadPage | None:
        """At once and without a task; None where that cannot be, and `read` has to be asked."""
        return self.reads.try_read(query, level)
