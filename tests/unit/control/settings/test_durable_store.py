"""Settings on disk: what was acknowledged survives, what is damaged is noticed, and a full disk changes nothing."""

import asyncio
import uuid
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import pytest
from tests.async_tests import settled
from tests.unit.journal.on_disks import Machine

from ebla.control.settings import durable_store
from ebla.control.settings.durable_store import DurableSettings
from ebla.model.errors import Corruption, DiskFull, Refused
from ebla.model.identity import HostId
from ebla.ports.environment import Environment
from ebla.settings_store.node_store import Decision, SettingsStore, Writer
from ebla.sim.disk import ProcessDisk

FOLDER = "/data/settings"
HOST = HostId(uuid.UUID(int=1))
WALL = 1_000
T = TypeVar("T")
Work = Callable[[DurableSettings], Coroutine[Any, Any, T]]


def with_settings(machine: Machine, work: Work[T]) -> Callable[[ProcessDisk], Coroutine[Any, Any, T]]:
    async def main(disk: ProcessDisk) -> T:
        environment = Environment(clock=None, rng=machine.rng, disk=disk, transport=None)  # type: ignore[arg-type]  # disk only
        durable = await DurableSettings.open(environment, FOLDER, HOST)
        async with asyncio.TaskGroup() as tasks:
            working = tasks.create_task(durable.work())
            try:
                return await work(durable)
            finally:
                working.cancel()

    return main


async def accept_writes(durable: DurableSettings) -> None:
    if durable.store.header.in_reset:
        await durable.replace(lambda store: store.restored(None, WALL))


async def write(durable: DurableSettings, key: str, value: bytes | None) -> Decision:
    return await durable.run(lambda store: store.write({key: value}, WALL, Writer()))


def contents(machine: Machine) -> SettingsStore:
    async def work(durable: DurableSettings) -> SettingsStore:
        return durable.store

    return machine.run(with_settings(machine, work))


def test_new_store_is_in_reset() -> None:
    machine = Machine(1)
    assert contents(machine).header.in_reset
    actor = contents(machine).header.actor
    assert contents(machine).header.actor == actor, "the second start finds the store of the first"


@pytest.mark.parametrize("seed", range(60))
def test_acknowledged_changes_survive_a_crash_at_any_moment(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(durable_store, "LOG_BYTES_MIN", 300)
    monkeypatch.setattr(durable_store, "COMPACT_S", 0.003)
    machine = Machine(seed)
    acknowledged: dict[str, bytes] = {}
    counters = [0]

    async def work(durable: DurableSettings) -> None:
        await accept_writes(durable)
        for number in range(1_000):
            key, value = f"user/{number % 7}", b"%d %d" % (number, machine.rng.randrange(0, 1000))
            await write(durable, key, value)
            acknowledged[key] = value
            counters.append(durable.store.header.counter)

    for _ in range(4):
        machine.run_until(machine.rng.random() * 0.15, with_settings(machine, work))
        machine.lose_power()
        found = contents(machine)
        assert found.header.counter >= max(counters), "a counter would be used twice"
        written_last = {key: found.get(key) for key in acknowledged}
        newer = [key for key, value in acknowledged.items() if written_last[key] != value]
        assert len(newer) <= 1, "at most the change in progress is there besides"
        assert all(written_last[key] is not None for key in acknowledged)
        acknowledged.update({key: value for key, value in written_last.items() if value is not None})
        counters.append(found.header.counter)


def test_everything_survives_a_new_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(durable_store, "LOG_BYTES_MIN", 100)
    monkeypatch.setattr(durable_store, "COMPACT_S", 0.001)
    machine = Machine(1)

    async def work(durable: DurableSettings) -> tuple[object, ...]:
        await accept_writes(durable)
        for number in range(50):
            await write(durable, "user/a", b"%d" % number)
            await asyncio.sleep(0.001)
        await write(durable, "user/b", None)
        store = durable.store
        return store.header, store.entries, store.history, store.size_bytes

    before = machine.run(with_settings(machine, work))
    store = contents(machine)
    assert (store.header, store.entries, store.history, store.size_bytes) == before


async def fill_up(durable: DurableSettings) -> None:
    for number in range(200):
        await write(durable, f"user/{number}", bytes(60_000))


def test_full_disk_changes_nothing_and_the_store_goes_on() -> None:
    machine = Machine(1)

    async def work(durable: DurableSettings) -> None:
        await accept_writes(durable)
        await write(durable, "user/a", b"x")
        machine.disk.fill()
        with pytest.raises(DiskFull):
            await fill_up(durable)
        header = durable.store.header
        machine.disk.heal()
        await write(durable, "user/a", b"y")
        assert durable.store.header.counter == header.counter + 1

    machine.run(with_settings(machine, work))
    assert contents(machine).get("user/a") == b"y"


def test_cancelled_caller_waits_for_a_change_that_is_being_written() -> None:
    """An order must not be over before its effect is. What waits behind it is dropped."""
    machine = Machine(1)

    async def work(durable: DurableSettings) -> None:
        await accept_writes(durable)
        async with asyncio.TaskGroup() as tasks:
            writing = tasks.create_task(write(durable, "user/a", b"x"))
            await settled()
            waiting = tasks.create_task(write(durable, "user/dropped", b"x"))
            await settled()
            writing.cancel()
            waiting.cancel()
            await asyncio.wait([waiting])
            assert not writing.done()
            writing.cancel()  # a second time: the order's caller gives up after its lease has ended
            await settled()
            assert not writing.done()
            await asyncio.wait([writing])
            assert writing.cancelled()
            assert durable.store.get("user/a") == b"x"
        await write(durable, "user/b", b"y")
        assert durable.store.get("user/dropped") is None
        assert durable.store.header.counter == 2

    machine.run(with_settings(machine, work))
    assert contents(machine).header.counter == 2


def test_refused_change_leaves_the_store_as_it_is() -> None:
    machine = Machine(1)

    async def work(durable: DurableSettings) -> None:
        await accept_writes(durable)
        with pytest.raises(Refused):
            await durable.run(lambda store: store.write({}, WALL, Writer(), {"user/a": b"x"}))

    machine.run(with_settings(machine, work))


@pytest.mark.parametrize("victim", ["settings", "log"])
def test_missing_part_is_not_taken_for_an_empty_store(victim: str) -> None:
    machine = Machine(1)

    async def work(durable: DurableSettings) -> None:
        await accept_writes(durable)
        await write(durable, "user/a", b"x")

    machine.run(with_settings(machine, work))
    machine.disk.put_folder(f"{FOLDER}/{victim}", None)
    with pytest.raises(Corruption) as caught:
        contents(machine)
    assert FOLDER in caught.value.advice


@pytest.mark.parametrize("seed", range(30))
def test_flipped_bit_is_noticed(seed: int) -> None:
    machine = Machine(seed)

    async def work(durable: DurableSettings) -> None:
        await accept_writes(durable)
        for number in range(30):
            await write(durable, f"user/{number}", b"x")

    machine.run(with_settings(machine, work))

    async def flip(disk: ProcessDisk) -> None:
        log = next(name for name in disk.list_folder(f"{FOLDER}/log") if name.endswith(".log"))
        path = machine.rng.choice([f"{FOLDER}/settings", f"{FOLDER}/log/{log}"])
        file = disk.open(path)
        data = file.read(0, 3_000)
        written = len(data.rstrip(b"\0"))
        offset = machine.rng.randrange(0, written)
        file.write(offset, bytes([data[offset] ^ (1 << machine.rng.randrange(0, 8))]))
        await file.sync()
        file.close()

    machine.run(flip)
    with pytest.raises(Corruption) as caught:
        contents(machine)
    assert FOLDER in caught.value.advice
