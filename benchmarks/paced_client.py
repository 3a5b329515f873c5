"""A client that sends at a fixed rate, independent of the answers: what users experience while something else runs.

A request is timed from the moment at which it was due. One that had to wait for the client counts as late. The client
should behave as if it had its own machine: it is a separate process and session, shares no interpreter with the other
work, and has the priority of a shard if allowed. So it measures the wait for the shards, not for a processor.

    python -m benchmarks.paced_client      (started by the benchmarks themselves)
"""

import asyncio
import pickle
import subprocess
import sys
import time
from collections.abc import Sequence

from benchmarks.row_client import DEADLINE_MS, LoadResult, ShardClient, Traffic, socket_to
from ebla.runtime.event_loop import new_event_loop
from ebla.runtime.priorities import raise_serving_priority

PAUSE_S = 0.002
CONNECTIONS = 4
"""Per shard: requests that wait during a stall must not reach the limit of one connection."""
FOR_EVER_S = 1e9
BEGUN = b"begun\n"


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
    """Runs from enter to exit. All connections get the same share of the rate."""

    def __init__(self, traffic: Sequence[Traffic], per_s: float, *, counts_failures: bool = False) -> None:
        """`counts_failures`: requests that failed are a figure; otherwise they end the benchmark."""
        self._counts_failures = counts_failures
        self._order = pickle.dumps(([one for one in traffic for _ in range(CONNECTIONS)], per_s))
        self.spell = LoadResult()

    def __enter__(self) -> "PacedLoad":
        command = [sys.executable, "-m", "benchmarks.paced_client"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(len(self._order).to_bytes(8) + self._order)
        self._process.stdin.flush()
        if self._process.stdout.read(len(BEGUN)) != BEGUN:
            raise RuntimeError("the client did not begin")
        return self

    def __exit__(self, *_: object) -> None:
        output, _nothing = self._process.communicate(timeout=DEADLINE_MS / 1000)
        if self._process.returncode:
            raise RuntimeError(f"the client ended with {self._process.returncode}")
        self.spell = pickle.loads(output)
        if (self.spell.failed and not self._counts_failures) or not self.spell.answered:
            counted = f"{self.spell.failed} requests failed, {self.spell.answered} were answered"
            raise RuntimeError(f"{counted}; the last failure: {self.spell.failure}")

    def percentile_ms(self, share: float) -> float:
        took = sorted(self.spell.took_s)
        return took[int(len(took) * share)] * 1000


async def _load(traffic: Sequence[Traffic], per_s: float) -> LoadResult:
    """Until stdin ends."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    loop.add_reader(sys.stdin, stop.set)
    clients = [_PacedClient(one) for one in traffic]
    for client, one in zip(clients, traffic):
        sock = socket_to(one.node, one.shard)
        await loop.create_connection(lambda made=client: made, sock=sock)  # type: ignore[misc]  # bound early
    sys.stdout.buffer.write(BEGUN)
    sys.stdout.flush()
    began = due = time.perf_counter()
    number = 0
    while not stop.is_set():
        while due <= time.perf_counter():
            clients[number % len(clients)].send_due(due)
            number += 1
            due += 1 / per_s
        await asyncio.sleep(PAUSE_S)
    loop.remove_reader(sys.stdin)
    spell = LoadResult()
    for client in clients:
        client.end()
        async with asyncio.timeout(DEADLINE_MS / 1000):
            await client.done
        client.close()
        spell.answered += client.spell.answered
        spell.failed += client.spell.failed
        spell.took_s += client.spell.took_s
        spell.failure = client.spell.failure or spell.failure
    spell.seconds = time.perf_counter() - began
    return spell


def main() -> None:
    raise_serving_priority()
    size = int.from_bytes(sys.stdin.buffer.read(8))
    traffic, per_s = pickle.loads(sys.stdin.buffer.read(size))
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        sys.stdout.buffer.write(pickle.dumps(runner.run(_load(traffic, per_s))))


if __name__ == "__main__":
    main()
