"""A client that sends at a fixed rate, whatever the answers do: what users feel while something else goes on.

A request is timed from the moment at which it was due. One that had to wait for the client itself counts as late.
"""

import asyncio
import threading
import time
from collections.abc import Sequence

from benchmarks.row_client import DEADLINE_MS, ShardClient, Spell, Traffic
from ebla.runtime.event_loop import new_event_loop

PAUSE_S = 0.002
CONNECTIONS = 4
"""To each shard: what a stall leaves waiting must not meet the bound of one connection."""
FOR_EVER_S = 1e9


class _PacedClient(ShardClient):
    def __init__(self, traffic: Traffic) -> None:
        super().__init__(traffic, 0, FOR_EVER_S)
        self._is_ending = False

    def send_due(self, due: float) -> None:
        out: list[bytes] = []
        self._send(due, out)
        assert self._transport is not None
        self._transport.write(b"".join(out))

    def _answered(self, _now: float, _out: list[bytes]) -> None:
        if self._is_ending and not self._sent and not self.done.done():
            self.done.set_result(None)

    def end(self) -> None:
        self._is_ending = True
        if not self._sent and not self.done.done():
            self.done.set_result(None)


class PacedLoad:
    """In a thread of its own, from entering to leaving. All connections get the same part of the rate."""

    def __init__(self, traffic: Sequence[Traffic], per_s: float) -> None:
        self._traffic = [one for one in traffic for _ in range(CONNECTIONS)]
        self._per_s = per_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.spell = Spell()

    def __enter__(self) -> "PacedLoad":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(DEADLINE_MS / 1000)
        if self.spell.failed or not self.spell.answered:
            told = f"{self.spell.failed} requests failed, {self.spell.answered} were answered"
            raise RuntimeError(f"{told}; the last failure: {self.spell.failure}")

    def percentile_ms(self, share: float) -> float:
        took = sorted(self.spell.took_s)
        return took[int(len(took) * share)] * 1000

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            runner.run(self._load())

    async def _load(self) -> None:
        loop = asyncio.get_running_loop()
        clients = [_PacedClient(one) for one in self._traffic]
        for client, one in zip(clients, self._traffic):
            path = str(one.node.folder.shard_socket(one.shard))
            await loop.create_unix_connection(lambda made=client: made, path)  # type: ignore[misc]  # bound early
        began = due = time.perf_counter()
        number = 0
        while not self._stop.is_set():
            while due <= time.perf_counter():
                clients[number % len(clients)].send_due(due)
                number += 1
                due += 1 / self._per_s
            await asyncio.sleep(PAUSE_S)
        for client in clients:
            client.end()
            async with asyncio.timeout(DEADLINE_MS / 1000):
                await client.done
            client.close()
            self.spell.answered += client.spell.answered
            self.spell.failed += client.spell.failed
            self.spell.took_s += client.spell.took_s
            self.spell.failure = client.spell.failure or self.spell.failure
        self.spell.seconds = time.perf_counter() - began
