"""The promises of group 0, checked by what its clients saw and by the final state of its nodes."""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec

from ebla.group0.store import Group0Store
from ebla.model.identity import HostId
from ebla.sim.checkers.history import ClientOperation, OperationHistory
from ebla.sim.checkers.linearizability import find_violation
from ebla.sim.checkers.models import RegisterRead, RegisterWrite
from ebla.wire.group0_messages import WatchAnswer


class CompareAndSwap(msgspec.Struct, frozen=True, tag="swap", array_like=True):
    """Write `new` if the value is still `expected`; values never repeat. Result: whether it was written."""

    expected: int
    new: int


class CellModel:
    """One key: read, written, swapped. 0 means that the key does not exist."""

    def initial(self) -> int:
        return 0

    def step(self, state: int, operation: ClientOperation) -> tuple[bool, int]:
        call, known = operation.call, operation.returned is not None
        if isinstance(call, RegisterRead):
            return operation.result == state, state
        if isinstance(call, RegisterWrite):
            return True, call.value
        holds = state == call.expected
        return not known or operation.result == holds, call.new if holds else state

    def changes(self, operation: ClientOperation) -> bool:
        return not isinstance(operation.call, RegisterRead)


@dataclass(frozen=True, slots=True)
class LockedWrite:
    lock: bytes
    index: int


class WatchMirror:
    """The state that a resumed watch feed adds up to, and whether the feed repeated or skipped a change."""

    def __init__(self) -> None:
        self.content: dict[str, bytes] = {}
        self.index = 0
        self.problem: str | None = None

    def take(self, answer: WatchAnswer, after: int | None) -> None:
        if answer.reset:
            self.content = {change.key: change.value for change in answer.changes if change.value is not None}
            self.index = answer.revision.index
            return
        for change in answer.changes:
            if after is not None and change.index <= after:
                self.problem = f"the feed after {after} repeats index {change.index}"
            if change.index < self.index:
                self.problem = f"the feed goes back from {self.index} to {change.index}"
            self.index = change.index
            if change.value is None:
                self.content.pop(change.key, None)
            else:
                self.content[change.key] = change.value
        self.index = answer.revision.index


class ClusterFoundings:
    """Which node created which history. Creating the same one again after a crash is correct.

    INV-FORM-1: nodes that list one another create exactly one cluster.
    """

    def __init__(self) -> None:
        self._founders: dict[str, str] = {}
        self.first = asyncio.Event()

    @property
    def founder(self) -> str:
        """The creator of the first history. Only valid after `first` is set."""
        return next(iter(self._founders.values()))

    def record_founder(self, history: str, founder: str) -> None:
        self._founders.setdefault(history, founder)
        self.first.set()

    def violation(self) -> str | None:
        if len(self._founders) <= 1:
            return None
        each = ", ".join(f"{history} by {founder}" for history, founder in self._founders.items())
        return f"INV-FORM-1: {len(self._founders)} clusters were created: {each}"


class AcceptedHosts:
    """Which hosts may run a Raft server, by what their nodes have reported.

    INV-NODE-21: no Raft server runs before its host is accepted, or creates the group.
    """

    def __init__(self) -> None:
        self._hosts: set[HostId] = set()

    def reported(self, event: str, host: HostId) -> None:
        if event in ("group0.created", "join.accepted"):
            self._hosts.add(host)

    def violation(self, running: Iterable[HostId]) -> str | None:
        early = sorted(host for host in running if host not in self._hosts)
        return f"INV-NODE-21: {early[0]} runs a Raft server and was not accepted" if early else None


@dataclass(slots=True, kw_only=True)
class Group0Record:
    registers: OperationHistory = field(default_factory=OperationHistory)
    sums: list[int] = field(default_factory=list)
    moves: int = 0
    locks: dict[bytes, int] = field(default_factory=dict)
    """Each acquired lock and the index of its acquisition."""
    locked_writes: list[LockedWrite] = field(default_factory=list)
    mirror: WatchMirror = field(default_factory=WatchMirror)


def find_problem(record: Group0Record, total: int) -> str | None:
    violation = find_violation(record.registers.operations(), CellModel())
    if violation is not None:
        return str(violation)
    wrong = [seen for seen in record.sums if seen != total]
    if wrong:
        return f"a read of two keys that change together adds up to {wrong[0]}, not {total}"
    return _lock_problem(record) or record.mirror.problem


def _lock_problem(record: Group0Record) -> str | None:
    """A write under a lock lies between the lock's acquisition and the next one."""
    acquired = sorted(record.locks.values())
    for write in record.locked_writes:
        since = record.locks[write.lock]
        until = next((index for index in acquired if index > since), None)
        if write.index <= since or (until is not None and write.index > until):
            return f"a write at {write.index} was accepted under a lock that was held from {since} to {until}"
    return None


def find_disagreement(stores: dict[str, Group0Store]) -> str | None:
    """Nodes that have applied the same index have the same state, including remembered answers."""
    by_index: dict[int, tuple[str, Group0Store]] = {}
    for name, store in stores.items():
        known = by_index.setdefault(store.index, (name, store))
        other = known[1]
        if other.entries != store.entries or other.lock != store.lock or other.members != store.members:
            return f"{known[0]} and {name} differ at index {store.index}"
        if other.answers.clients != store.answers.clients:
            return f"{known[0]} and {name} remember different answers at index {store.index}"
    return None
