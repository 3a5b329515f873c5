"""Reads that wait until the leader has proven, after they arrived, that it still leads."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from ebla.raft.messages import PeerId


@dataclass(slots=True, kw_only=True)
class PendingRead:
    sender: PeerId
    context: bytes
    index: int = 0
    acknowledged_by: dict[PeerId, bool] = field(default_factory=dict)


class ReadQueue:
    """In order of arrival: an answer to a later heartbeat proves leadership for all earlier reads too."""

    __slots__ = ("_confirming", "early")

    def __init__(self) -> None:
        self.early: list[PendingRead] = []
        """Came before the leader committed an entry of its own term: its commit index may be behind the truth."""
        self._confirming: dict[bytes, PendingRead] = {}

    def __len__(self) -> int:
        return len(self.early) + len(self._confirming)

    def add(self, read: PendingRead) -> None:
        self._confirming.setdefault(read.context, read)

    def acknowledge(self, peer: PeerId, context: bytes) -> Mapping[PeerId, bool]:
        read = self._confirming.get(context)
        if read is None:
            return {}
        read.acknowledged_by[peer] = True
        return read.acknowledged_by

    def release(self, context: bytes) -> list[PendingRead]:
        """The read with this context and all before it."""
        released = []
        for known in list(self._confirming):
            released.append(self._confirming.pop(known))
            if known == context:
                break
        return released

    def last_context(self) -> bytes:
        return next(reversed(self._confirming), b"")
