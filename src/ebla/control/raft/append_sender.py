"""What a Raft peer sends: messages of one turn for one peer together, a leader's appends in the order of need."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from ebla.raft.held_appends import HeldAppends
from ebla.raft.messages import Append, InstallSnapshot, Message, PeerId
from ebla.raft.waiting_peers import WaitingPeers

APPENDS_PER_SEND_MAX = 8
"""Messages of one turn for one peer leave together, but not so many appends that no frame could hold them."""


class LeaderLog(Protocol):
    @property
    def last_index(self) -> int: ...

    @property
    def commit_index(self) -> int: ...


@dataclass(frozen=True, slots=True)
class SendActions:
    """What sending comes down to."""

    send: Callable[[PeerId, Sequence[Message]], None]
    send_snapshot: Callable[[InstallSnapshot], None]
    """A snapshot has a way of its own."""
    hold_ends_soon: Callable[[], None]
    """Asks for `release_all` a moment later."""


class AppendSender:
    def __init__(self, held: HeldAppends, waiting: WaitingPeers, ways: SendActions) -> None:
        self._held = held
        self._waiting = waiting
        self._ways = ways
        self._send = ways.send
        self._ends_soon = False

    def send(self, messages: Sequence[Message], log: LeaderLog, now_ms: int) -> None:
        by_peer: dict[PeerId, list[Message]] = {}
        for message in messages:
            if type(message) is InstallSnapshot:
                self._ways.send_snapshot(message)
            elif message.to in by_peer:
                by_peer[message.to].append(message)
            else:
                by_peer[message.to] = [message]
        for peer, several in by_peer.items():
            # Also what is left of a former choice goes before anything that follows it.
            if self._held.has_ranking or not self._held.is_empty:
                if not self._waiting.is_waiting(peer, now_ms) and self._held.hold(peer, several, log.last_index):
                    self._end_soon()
                    continue
                self._release(peer)
            if len(several) <= APPENDS_PER_SEND_MAX:
                self._send(peer, several)
                continue
            for start in range(0, len(several), APPENDS_PER_SEND_MAX):
                self._send(peer, several[start : start + APPENDS_PER_SEND_MAX])

    def release_all(self, log: LeaderLog) -> None:
        self._ends_soon = False
        for append in self._held.take_all(log.commit_index):
            self._send(append.to, (append,))

    def _end_soon(self) -> None:
        if not self._ends_soon:
            self._ends_soon = True
            self._ways.hold_ends_soon()

    def _release(self, peer: PeerId) -> None:
        append: Append | None = self._held.take(peer)
        if append is not None:
            self._send(peer, (append,))
