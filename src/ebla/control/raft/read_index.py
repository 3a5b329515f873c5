"""Reads that wait for a quorum: those of one turn share one round, whose answer serves them all."""

import asyncio
from collections import deque
from collections.abc import Sequence

from ebla.model.errors import Unavailable
from ebla.ports.rng import Rng
from ebla.raft.effects import ConfirmedRead
from ebla.raft.events import ReadIndex
from ebla.raft.messages import PeerId

Reader = asyncio.Future[int]


class ReadIndexRounds:
    def __init__(self, peer: PeerId, rng: Rng, wait_max_ms: int) -> None:
        self.gathered: list[Reader] = []
        """Readers that the next round is for."""
        self._wait_max_ms = wait_max_ms
        self._asked: dict[bytes, list[Reader]] = {}
        self._asked_since: deque[tuple[float, bytes]] = deque()
        # A context names one read of the whole group for ever: after a restart an answer to a former life's read may
        # still come, and at the leader the reads of all peers meet. An old answer would pass for a new one.
        self._this_life = peer.to_bytes(8) + rng.bytes(8)
        self._count = 0

    def add(self) -> Reader:
        future: Reader = asyncio.get_running_loop().create_future()
        self.gathered.append(future)
        return future

    def next_round(self) -> tuple[ReadIndex, list[Reader]]:
        """For whoever gathered. The caller asks the core, and tells `asked` or `fail_readers` what came of it."""
        readers, self.gathered = self.gathered, []
        self._count += 1
        context = self._this_life + self._count.to_bytes(8)
        return ReadIndex(context), readers

    def asked(self, question: ReadIndex, readers: list[Reader]) -> None:
        self._asked[question.context] = readers
        self._asked_since.append((asyncio.get_running_loop().time(), question.context))

    def answer(self, read: ConfirmedRead) -> None:
        for reader in self._asked.pop(read.context, ()):
            if not reader.done():
                reader.set_result(read.index)

    def drop_old(self) -> None:
        """A lost request is never answered; its readers have their own bounds, this bounds the memory."""
        oldest = asyncio.get_running_loop().time() - self._wait_max_ms / 1000
        while self._asked_since and self._asked_since[0][0] < oldest:
            _, context = self._asked_since.popleft()
            fail_readers(self._asked.pop(context, []), "no quorum answered in time")

    def fail_all(self, reason: str) -> None:
        for waiting in self._asked.values():
            fail_readers(waiting, reason)
        self._asked.clear()
        self._asked_since.clear()


def fail_readers(readers: Sequence[Reader], reason: str) -> None:
    for reader in readers:
        if not reader.done():
            reader.set_exception(Unavailable(f"no quorum for a read: {reason}"))
