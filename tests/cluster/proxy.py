"""A TCP proxy between two nodes that can delay or drop bytes while connections stay open, as a network does."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

CHUNK_BYTES = 65_536


class Proxy:
    """Runs in its own thread. `delay_s` and `cut` may be set at any time, from any thread."""

    def __init__(self, listen: tuple[str, int], target: tuple[str, int]) -> None:
        self.delay_s = 0.0
        self.cut = False
        self._listen = listen
        self._target = target
        self._loop = asyncio.new_event_loop()
        self._listening = threading.Event()
        self._stop = asyncio.Event()
        self._serving: dict[asyncio.Task[None], None] = {}

    async def run(self) -> None:
        server = await asyncio.start_server(self._serve, *self._listen)
        self._listening.set()
        await self._stop.wait()
        server.close()
        for task in list(self._serving):
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving[task] = None
        try:
            await self._connect_through(reader, writer)
        finally:
            del self._serving[task]

    async def _connect_through(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            onward_reader, onward_writer = await asyncio.open_connection(*self._target)
        except OSError:
            await _closed(writer)
            return
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._pump(reader, onward_writer))
                tasks.create_task(self._pump(onward_reader, writer))
        finally:
            await _closed(writer)
            await _closed(onward_writer)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(CHUNK_BYTES):
                await asyncio.sleep(self.delay_s)
                while True:
                    if not self.cut:
                        break
                    await asyncio.sleep(0.02)
                writer.write(data)
                await writer.drain()
            writer.write_eof() if writer.can_write_eof() else writer.close()
        except OSError:
            writer.close()

    @contextmanager
    def running(self) -> Iterator["Proxy"]:
        thread = threading.Thread(target=self._thread, name="proxy")
        thread.start()
        assert self._listening.wait(60)
        try:
            yield self
        finally:
            self._loop.call_soon_threadsafe(self._stop.set)
            thread.join(10)
            assert not thread.is_alive()

    def _thread(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self.run())


async def _closed(writer: asyncio.StreamWriter) -> None:
    """Waits until they are closed: a socket that is open when the loop ends is a warning, and warnings fail tests."""
    writer.close()
    try:
        await writer.wait_closed()
    except OSError:
        pass
