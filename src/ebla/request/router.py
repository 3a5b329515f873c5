"""The router of a shard: requests of clients, by the replicas that the topology names."""

import asyncio
from collections.abc import Sequence

from ebla.model.consistency import ConsistencyLevel
from ebla.request.parts import Mutation, ReadPage, ReadQuery, RouterParts
from ebla.request.reads import RoutedReads
from ebla.request.timestamps import Timestamps
from ebla.request.writes import RoutedWrites


class Router:
    def __init__(self, parts: RouterParts) -> None:
        self.parts = parts
        self.timestamps = Timestamps(parts.clock)
        self.writes = RoutedWrites(parts)
        self.reads = RoutedReads(parts)

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
