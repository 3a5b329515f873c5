"""A TCP proxy between two nodes that can be slow and can be cut, as a network is: connections stay, bytes do not."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

CHUNK_BYTES = 65_536


class Proxy:
    """Runs on a thread of its own. `delay_s` and `cut` may be set at any time, from any thread."""

    def __init__(self, listen: tuple[str, int], target: tuple[str, int]) -> None:
        self.delay_s = 0.0
        self.cut = False
        self._listen = listen
        self._target = target
        self._loop = asyncio.new_event_loop()
        self._listening = threading.Event()
        self._stop = asyncio.Event()

    async def run(self) -> None:
        server = await asyncio.start_server(self._serve, *self._listen)
        self._listening.set()
        await self._stop.wait()
        server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            onward_reader, onward_writer = await asyncio.open_connection(*self._target)
        except OSError:
            writer.close()
            return
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._pump(reader, onward_writer))
                tasks.create_task(self._pump(onward_reader, writer))
        finally:
            writer.close()
            onward_writer.close()

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
        assert self._listening.wait(10)
        try:
            yield self
        finally:
            self._loop.call_soon_threadsafe(self._stop.set)
            thread.join(10)
            assert not thread.is_alive()

    def _thread(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self.run())
