"""Clients of group 0 over its operator verbs: reads, writes, conditional changes, transfers between keys, locks."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from ebla.group0.commands import CommandAnswer, ConditionFailed, Done, LockRevoked
from ebla.model.errors import EblaError, Outcome
from ebla.model.identity import Address, HostId
from ebla.model.transaction import Condition, KeyMissing, KeyUnchanged, PutKey, Transaction
from ebla.ports.environment import Environment
from ebla.sim.checkers.group0 import CompareAndSwap, Group0Record, LockedWrite
from ebla.sim.checkers.models import RegisterRead, RegisterWrite
from ebla.sim.clients import ClientLoad, NodeConnection, peers_context
from ebla.sim.clusters.group0 import CLUSTER, CLUSTER_NAME
from ebla.wire.frames import Introduction
from ebla.wire.group0_messages import (
    ExecuteRequest,
    Group0ReadAnswer,
    Group0ReadRequest,
    KeyValue,
    LockRequest,
)
from ebla.wire.group0_pages import ReadPager, WatchPager
from ebla.wire.verbs import GROUP0_EXECUTE, GROUP0_LOCK, GROUP0_READ, GROUP0_WATCH

KEYS = ("user/a", "user/b", "user/c")
LEFT, RIGHT = "user/left", "user/right"
TOTAL = 1_000
DEADLINE_MS = 2_500
THINK_S = 0.2


@dataclass(slots=True, kw_only=True)
class Group0Load(ClientLoad):
    addresses: Sequence[Address]
    record: Group0Record = field(default_factory=Group0Record)
    next_value: int = 0

    def value(self) -> int:
        """Unique, so that a value identifies its write."""
        self.next_value += 1
        return self.next_value

    def connection(self, environment: Environment, name: str) -> NodeConnection:
        host = HostId(environment.rng.uuid())
        introduction = Introduction(host=host, cluster=CLUSTER, cluster_name=CLUSTER_NAME, process=name)
        return NodeConnection(peers_context(environment, introduction), self.addresses)


def decode_number(data: bytes) -> int:
    number = msgspec.msgpack.decode(data)
    assert isinstance(number, int)
    return number


class Group0WorkloadClient:
    def __init__(self, environment: Environment, name: str, load: Group0Load) -> None:
        self._rng = environment.rng
        self._name = name
        self._load = load
        self._nodes = load.connection(environment, name)
        self._lock: bytes | None = None

    async def run(self) -> None:
        await self._load.keep_calling(self._act, self._rng, THINK_S)

    async def _act(self) -> None:
        if self._rng.random() < 0.1:
            self._nodes.leave()
        kind = self._rng.randrange(0, 100)
        key = self._rng.choice(KEYS)
        if kind < 30:
            await self._read(key)
        elif kind < 55:
            await self._write(key)
        elif kind < 75:
            await self._swap(key)
        elif kind < 90:
            await self._move()
        elif self._lock is None or kind < 94:
            await self._acquire()
        else:
            await self._write_locked()

    async def _read(self, key: str) -> None:
        history = self._load.record.registers
        number = history.invoke(self._name, RegisterRead(), key)
        try:
            answer = await self._nodes.call(GROUP0_READ, Group0ReadRequest(keys=(key,)), DEADLINE_MS)
        except EblaError:
            history.withdraw(number)
            return
        history.complete(number, decode_number(answer.found[0].value) if answer.found else 0)

    async def _write(self, key: str) -> None:
        history, value = self._load.record.registers, self._load.value()
        number = history.invoke(self._name, RegisterWrite(value), key)
        if await self._execute(_put(key, value), lambda: history.withdraw(number)) is not None:
            history.complete(number, value)

    async def _swap(self, key: str) -> None:
        found = await self._look((key,), quorum=self._rng.random() < 0.5)
        if found is None:
            return
        entry = found.get(key)
        call = CompareAndSwap(0 if entry is None else decode_number(entry.value), self._load.value())
        condition: Condition = KeyMissing(key) if entry is None else KeyUnchanged(key, entry.revision)
        history = self._load.record.registers
        number = history.invoke(self._name, call, key)
        answer = await self._execute(_put(key, call.new, condition), lambda: history.withdraw(number))
        if answer is not None:
            assert isinstance(answer, Done | ConditionFailed), answer
            history.complete(number, isinstance(answer, Done))

    async def _move(self) -> None:
        """Moves an amount from one of two keys to the other in one transaction: their sum never changes."""
        found = await (self._look_at_all() if self._rng.random() < 0.3 else self._look((LEFT, RIGHT), quorum=True))
        if found is None:
            return
        amounts = {key: decode_number(found[key].value) for key in (LEFT, RIGHT) if key in found}
        if amounts:
            self._load.record.sums.append(sum(amounts.values()))
        amount = self._rng.randrange(1, 10)
        left, right = amounts.get(LEFT, TOTAL), amounts.get(RIGHT, 0)
        conditions = tuple(
            KeyUnchanged(key, found[key].revision) if key in found else KeyMissing(key) for key in (LEFT, RIGHT)
        )
        changes = (
            PutKey(LEFT, msgspec.msgpack.encode(left - amount)),
            PutKey(RIGHT, msgspec.msgpack.encode(right + amount)),
        )
        await self._execute(Transaction(conditions, changes))
        self._load.record.moves += 1

    async def _acquire(self) -> None:
        self._lock = None
        try:
            answer = await self._nodes.call(GROUP0_LOCK, LockRequest(), DEADLINE_MS)
        except EblaError:
            return
        self._lock = answer.lock
        self._load.record.locks[answer.lock] = answer.revision.index

    async def _write_locked(self) -> None:
        assert self._lock is not None
        put = PutKey("user/locked", msgspec.msgpack.encode(self._load.value()))
        answer = await self._execute(Transaction((), (put,), self._lock))
        if isinstance(answer, Done):
            self._load.record.locked_writes.append(LockedWrite(self._lock, answer.revision.index))
        elif answer is not None:
            assert isinstance(answer, LockRevoked), answer
            self._lock = None

    async def _execute(
        self, transaction: Transaction, on_not_applied: Callable[[], None] = lambda: None
    ) -> CommandAnswer | None:
        """None if it failed. Its outcome is then unknown, unless `on_not_applied` was called."""
        try:
            return (await self._nodes.call(GROUP0_EXECUTE, ExecuteRequest(transaction), DEADLINE_MS)).answer
        except EblaError as error:
            if error.outcome is Outcome.NOT_APPLIED:
                on_not_applied()
            return None

    async def _look(self, keys: tuple[str, ...], *, quorum: bool) -> dict[str, KeyValue] | None:
        try:
            request = Group0ReadRequest(keys=keys, quorum=quorum)
            answer = await self._nodes.call(GROUP0_READ, request, DEADLINE_MS)
        except EblaError:
            return None
        return {found.key: found for found in answer.found}

    async def _look_at_all(self) -> dict[str, KeyValue] | None:
        """In pages, between which others write: all pages must show one moment."""
        pages = ReadPager(Group0ReadRequest(prefixes=("user/",)))
        whole: Group0ReadAnswer | None = None
        try:
            while whole is None:
                whole = pages.take(await self._nodes.call(GROUP0_READ, pages.request(), DEADLINE_MS))
        except EblaError:
            return None
        return {found.key: found for found in whole.found}


def _put(key: str, value: int, *conditions: Condition) -> Transaction:
    return Transaction(conditions, (PutKey(key, msgspec.msgpack.encode(value)),))


class Group0Watcher:
    """Follows the feed from node to node by its revision, and keeps the resulting state."""

    def __init__(self, environment: Environment, name: str, load: Group0Load) -> None:
        self._nodes = load.connection(environment, name)
        self._load = load
        self._rng = environment.rng

    async def run(self) -> None:
        mirror = self._load.record.mirror
        pages, seen = WatchPager("user/"), 0
        while True:
            if self._rng.random() < 0.05:
                self._nodes.leave()
            try:
                answer = await self._nodes.call(GROUP0_WATCH, pages.request(wait_ms=1_000), 2_000)
            except EblaError:
                await asyncio.sleep(0.1)
                continue
            if answer.revision.index < seen:
                self._nodes.leave()  # this node lags behind the revision already seen
                continue
            whole = pages.take(answer)
            if whole is not None:
                mirror.take(whole, seen or None)
                seen = whole.revision.index
