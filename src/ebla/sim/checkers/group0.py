"""What must hold of group 0, judged by what its clients saw and by what its nodes hold at the end."""

import enum
from dataclasses import dataclass, field

import msgspec

from ebla.group0.store import Store
from ebla.sim.checkers.history import History, Operation
from ebla.sim.checkers.linearizability import find_violation
from ebla.sim.checkers.models import Read, Write
from ebla.wire.group0_messages import WatchAnswer


class Swap(msgspec.Struct, frozen=True, tag="swap", array_like=True):
    """Write `new` if the value is still `expected`; values never repeat. Result: whether it was written."""

    expected: int
    new: int


class CellModel:
    """One key: read, written, swapped. 0 stands for a key that does not exist."""

    def initial(self) -> int:
        return 0

    def step(self, state: int, operation: Operation) -> tuple[bool, int]:
        call, known = operation.call, operation.returned is not None
        if isinstance(call, Read):
            return operation.result == state, state
        if isinstance(call, Write):
            return True, call.value
        holds = state == call.expected
        return not known or operation.result == holds, call.new if holds else state

    def changes(self, operation: Operation) -> bool:
        return not isinstance(operation.call, Read)


class Move(enum.Enum):
    OPEN = "open"
    DONE = "done"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class LockedWrite:
    lock: bytes
    index: int


class Mirror:
    """What a resumed feed amounts to, and whether it ever repeated or skipped."""

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


@dataclass(slots=True)
class Group0Record:
    registers: History = field(default_factory=History)
    sums: list[int] = field(default_factory=list)
    moves: list[Move] = field(default_factory=list)
    locks: dict[bytes, int] = field(default_factory=dict)
    """Each acquired lock and the index of its acquisition."""
    locked_writes: list[LockedWrite] = field(default_factory=list)
    mirror: Mirror = field(default_factory=Mirror)

    def begin_move(self) -> int:
        self.moves.append(Move.OPEN)
        return len(self.moves) - 1

    def end_move(self, number: int, outcome: Move) -> None:
        self.moves[number] = outcome


def problem_of(record: Group0Record, total: int) -> str | None:
    violation = find_violation(record.registers.operations(), CellModel())
    if violation is not None:
        return str(violation)
    wrong = [seen for seen in record.sums if seen != total]
    if wrong:
        return f"two keys that change together were seen to add up to {wrong[0]}, not {total}"
    return _lock_problem(record) or record.mirror.problem


def _lock_problem(record: Group0Record) -> str | None:
    """A write under a lock stands between the lock's acquisition and the next one."""
    acquired = sorted(record.locks.values())
    for write in record.locked_writes:
        since = record.locks[write.lock]
        until = next((index for index in acquired if index > since), None)
        if write.index <= since or (until is not None and write.index > until):
            return f"a write at {write.index} was honoured under a lock that held from {since} to {until}"
    return None


def disagreement(stores: dict[str, Store]) -> str | None:
    """Nodes that have applied the same index hold the same state, answers included."""
    by_index: dict[int, tuple[str, Store]] = {}
    for name, store in stores.items():
        known = by_index.setdefault(store.index, (name, store))
        other = known[1]
        if other.entries != store.entries or other.lock != store.lock or other.members != store.members:
            return f"{known[0]} and {name} differ at index {store.index}"
        if other.answers.clients != store.answers.clients:
            return f"{known[0]} and {name} remember different answers at index {store.index}"
    return None
