"""Linearizable reads (read-index). All reads of one turn share one round."""

import asyncio
from collections import deque
from collections.abc import Sequence

from ebla.model.errors import Unavailable
from ebla.ports.rng import Rng
from ebla.raft.core import RaftCore
from ebla.raft.effects import ConfirmedRead
from ebla.raft.events import ReadIndex
from ebla.raft.messages import PeerId
from ebla.raft.state import StepRefusal

Reader = asyncio.Future[int]


class ReadIndexRounds:
    def __init__(self, peer: PeerId, rng: Rng, wait_max_ms: int) -> None:
        self.gathered: list[Reader] = []
        """Readers of the next round."""
        self._wait_max_ms = wait_max_ms
        self._rounds: dict[bytes, list[Reader]] = {}
        self._started: deque[tuple[float, bytes]] = deque()
        # A context names one read of the whole group, forever: after a restart an answer to a read of the previous
        # incarnation may still arrive, and the leader sees the reads of all peers. An old answer would pass for a new
        # one.
        self._incarnation = peer.to_bytes(8) + rng.bytes(8)
        self._count = 0

    def add(self) -> Reader:
        future: Reader = asyncio.get_running_loop().create_future()
        self.gathered.append(future)
        return future

    def start_round(self, core: RaftCore, now_ms: int) -> None:
        readers, self.gathered = self.gathered, []
        self._count += 1
        context = self._incarnation + self._count.to_bytes(8)
        refusal = core.step(ReadIndex(context), now_ms)
        if isinstance(refusal, StepRefusal):
            _fail(readers, refusal.value)
            return
        self._rounds[context] = readers
        self._started.append((asyncio.get_running_loop().time(), context))

    def answer(self, read: ConfirmedRead) -> None:
        for reader in self._rounds.pop(read.context, ()):
            if not reader.done():
                reader.set_result(read.index)

    def drop_old(self) -> None:
        """A lost request is never answered. Its readers have deadlines of their own; this bounds the memory."""
        oldest = asyncio.get_running_loop().time() - self._wait_max_ms / 1000
        while self._started and self._started[0][0] < oldest:
            _, context = self._started.popleft()
            _fail(self._rounds.pop(context, []), "no quorum answered in time")

    def fail_all(self, reason: str) -> None:
        for readers in self._rounds.values():
            _fail(readers, reason)
        self._rounds.clear()
        self._started.clear()


def _fail(readers: Sequence[Reader], reason: str) -> None:
    for reader in readers:
        if not reader.done():
            reader.set_exception(Unavailable(f"no quorum for a read: {reason}"))
