"""What the layers of both engines share: state, and the order of flush, close and discard."""

import asyncio
from abc import ABC, abstractmethod

from ebla.model.errors import Stale
from ebla.storage.layers.layer_facts import NO_FACTS, LayerFacts


class LayerBase(ABC):
    def __init__(self, folder: str, *, writable: bool) -> None:
        self._folder = folder
        self._writable = writable
        self._facts = NO_FACTS
        self._unflushed_bytes = 0
        self._accepts_puts = writable
        self._closed = False
        self._slow_work = asyncio.Lock()
        """Held by whatever awaits: one flush, checkpoint or close at a time."""

    @property
    def folder(self) -> str:
        return self._folder

    @property
    def writable(self) -> bool:
        return self._writable

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def facts(self) -> LayerFacts:
        return self._facts

    async def flush(self) -> None:
        async with self._slow_work:
            self._check_open()
            await self._flush()

    async def close(self) -> None:
        async with self._slow_work:
            if self._closed:
                return
            self._accepts_puts = False
            try:
                await self._flush()
            except BaseException:
                self._accepts_puts = self._writable
                raise
            await self._release()

    async def discard(self) -> None:
        async with self._slow_work:
            if not self._closed:
                await self._release()

    @abstractmethod
    async def _flush(self) -> None: ...

    @abstractmethod
    async def _release(self) -> None:
        """Lets go of every file; the layer is closed on return."""

    def _check_open(self) -> None:
        if self._closed:
            raise Stale(f"layer {self._folder} is closed")

    def _check_puts(self) -> None:
        assert self._writable, f"{self._folder} is a base, which is never written to"
        if not self._accepts_puts:
            raise Stale(f"layer {self._folder} is closed")
