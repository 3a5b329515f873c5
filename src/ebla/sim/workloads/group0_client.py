"""Clients of group 0 over its operator verbs: reads, writes, conditional changes, transfers between keys, locks."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from ebla.group0.commands import ConditionFailed, Done, LockRevoked
from ebla.model.errors import EblaError, Outcome
from ebla.model.identity import Address, HostId
from ebla.model.transaction import Condition, KeyMissing, KeyUnchanged, PutKey, Transaction
from ebla.observe.event_reporter import discard_event
from ebla.ports.environment import Environment
from ebla.sim.checkers.group0 import CompareAndSwap, Group0Record, LockedWrite, MoveOutcome
from ebla.sim.checkers.models import RegisterRead, RegisterWrite
from ebla.sim.clusters.group0 import CLUSTER, CLUSTER_NAME
from ebla.wire.client_connection import ConnectionTarget, RpcClientConnection
from ebla.wire.frames import Introduction, Lane
from ebla.wire.group0_messages import (
    ExecuteRequest,
    FoundKeyValue,
    Group0ReadAnswer,
    Group0ReadRequest,
    LockRequest,
)
from ebla.wire.group0_pages import ReadPager, WatchPager
from ebla.wire.limits import WireLimits
from ebla.wire.peers import PeersContext, connect
from ebla.wire.verbs import GROUP0_EXECUTE, GROUP0_LOCK, GROUP0_READ, GROUP0_WATCH, A, Q, Verb

KEYS = ("user/a", "user/b", "user/c")
LEFT, RIGHT = "user/left", "user/right"
TOTAL = 1_000
DEADLINE_MS = 2_500
THINK_S = 0.2


@dataclass(slots=True, kw_only=True)
class Group0Load:
    addresses: Mapping[str, Address]
    record: Group0Record
    stopping: bool = False
    idle: asyncio.Event = field(default_factory=asyncio.Event)
    open_calls: int = 0
    next_value: int = 0

    def value(self) -> int:
        """Unique, so that a value identifies its write."""
        self.next_value += 1
        return self.next_value

    async def stop(self, seconds: float) -> bool:
        self.stopping = True
        try:
            async with asyncio.timeout(seconds):
                while self.open_calls:
                    self.idle.clear()
                    await self.idle.wait()
        except TimeoutError:
            return False
        return True


def decode_number(data: bytes) -> int:
    number = msgspec.msgpack.decode(data)
    assert isinstance(number, int)
    return number


class Group0Connection:
    """The connection of one client. After a failure it connects to another node."""

    def __init__(self, environment: Environment, name: str, load: Group0Load) -> None:
        self.environment = environment
        introduction = Introduction(
            host=HostId(environment.rng.uuid()), cluster=CLUSTER, cluster_name=CLUSTER_NAME, process=name
        )
        self._context = PeersContext(
            transport=environment.transport,
            rng=environment.rng,
            introduction=introduction,
            limits=WireLimits(),
            report=discard_event,
        )
        self._load = load
        self._caller: RpcClientConnection | None = None

    async def call(self, verb: Verb[Q, A], request: Q, deadline_ms: int = DEADLINE_MS) -> A:
        try:
            if self._caller is None:
                address = self._load.addresses[self.environment.rng.choice(sorted(self._load.addresses))]
                self._caller, _ = await connect(self._context, address, ConnectionTarget(Lane.CONTROL))
            return await self._caller.call(verb, request, deadline_ms)
        except EblaError:
            self.leave()
            raise

    def leave(self) -> None:
        if self._caller is not None:
            self._caller.close("on to another node")
        self._caller = None


class Group0WorkloadClient:
    def __init__(self, environment: Environment, name: str, load: Group0Load) -> None:
        self._rng = environment.rng
        self._name = name
        self._load = load
        self._nodes = Group0Connection(environment, name, load)
        self._lock: bytes | None = None

    async def run(self) -> None:
        while not self._load.stopping:
            self._load.open_calls += 1
            await self._act()
            self._load.open_calls -= 1
            self._load.idle.set()
            if self._rng.random() < 0.1:
                self._nodes.leave()
            await asyncio.sleep(self._rng.random() * THINK_S)
        await asyncio.Event().wait()

    async def _act(self) -> None:
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
            answer = await self._nodes.call(GROUP0_READ, Group0ReadRequest(keys=(key,)))
        except EblaError:
            history.withdraw(number)
            return
        history.complete(number, decode_number(answer.found[0].value) if answer.found else 0)

    async def _write(self, key: str) -> None:
        history, value = self._load.record.registers, self._load.value()
        number = history.invoke(self._name, RegisterWrite(value), key)
        try:
            await self._nodes.call(GROUP0_EXECUTE, _put(key, value))
        except EblaError as error:
            if error.outcome is Outcome.NOT_APPLIED:
                history.withdraw(number)
            return
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
        request = _put(key, call.new, condition)
        try:
            answer = (await self._nodes.call(GROUP0_EXECUTE, request)).answer
        except EblaError as error:
            if error.outcome is Outcome.NOT_APPLIED:
                history.withdraw(number)
            return
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
        move = self._load.record.begin_move()
        try:
            answer = await self._nodes.call(GROUP0_EXECUTE, ExecuteRequest(Transaction(conditions, changes)))
        except EblaError as error:
            if error.outcome is Outcome.NOT_APPLIED:
                self._load.record.end_move(move, MoveOutcome.REFUSED)
            return
        self._load.record.end_move(move, MoveOutcome.DONE if isinstance(answer.answer, Done) else MoveOutcome.REFUSED)

    async def _acquire(self) -> None:
        self._lock = None
        try:
            answer = await self._nodes.call(GROUP0_LOCK, LockRequest())
        except EblaError:
            return
        self._lock = answer.lock
        self._load.record.locks[answer.lock] = answer.revision.index

    async def _write_locked(self) -> None:
        assert self._lock is not None
        put = PutKey("user/locked", msgspec.msgpack.encode(self._load.value()))
        try:
            request = ExecuteRequest(Transaction((), (put,), self._lock))
            answer = (await self._nodes.call(GROUP0_EXECUTE, request)).answer
        except EblaError:
            return
        if isinstance(answer, Done):
            self._load.record.locked_writes.append(LockedWrite(self._lock, answer.revision.index))
        else:
            assert isinstance(answer, LockRevoked), answer
            self._lock = None

    async def _look(self, keys: tuple[str, ...], *, quorum: bool) -> dict[str, FoundKeyValue] | None:
        try:
            answer: Group0ReadAnswer = await self._nodes.call(GROUP0_READ, Group0ReadRequest(keys=keys, quorum=quorum))
        except EblaError:
            return None
        return {found.key: found for found in answer.found}

    async def _look_at_all(self) -> dict[str, FoundKeyValue] | None:
        """In pages, between which others write: all pages must show one moment."""
        pages = ReadPager(Group0ReadRequest(prefixes=("user/",)))
        whole: Group0ReadAnswer | None = None
        try:
            while whole is None:
                whole = pages.take(await self._nodes.call(GROUP0_READ, pages.request()))
        except EblaError:
            return None
        return {found.key: found for found in whole.found}


def _put(key: str, value: int, *conditions: Condition) -> ExecuteRequest:
    return ExecuteRequest(Transaction(conditions, (PutKey(key, msgspec.msgpack.encode(value)),)))


class Group0Watcher:
    """Follows the feed from node to node by its revision, and keeps the resulting state."""

    def __init__(self, environment: Environment, name: str, load: Group0Load) -> None:
        self._nodes = Group0Connection(environment, name, load)
        self._load = load
        self._rng = environment.rng

    async def run(self) -> None:
        mirror = self._load.record.mirror
        pages, seen = WatchPager("user/"), 0
        while True:
            if self._rng.random() < 0.05:
                self._nodes.leave()
            try:
                answer = await self._nodes.call(GROUP0_WATCH, pages.request(wait_ms=1_000), deadline_ms=2_000)
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
