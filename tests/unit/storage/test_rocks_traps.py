"""What the library does wrong or surprisingly, each beside what our module makes of it.

The first half of a test shows the library alone: if a release fixes it, the test fails and the workaround can go.
"""

import asyncio
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from rocksdict import Options, Rdict, ReadOptions, WriteOptions
from tests.async_tests import real_time, runs_in
from tests.unit.storage.rigs import SMALL as SMALL_LAYERS
from tests.unit.storage.rigs import Rig, at, key, rows
from tests.unit.storage.small_table import SMALL, key_of, value_of
from tests.unit.storage.store_rig import limits, open_new_store

from ebla.model.errors import Overloaded, Refused
from ebla.model.rows import Row, RowMarker
from ebla.model.token import WHOLE_RING
from ebla.ports.disk import Disk
from ebla.runtime.system_rng import SystemRng
from ebla.storage.layers.layer import Item, Layer, LayerDamaged, build_layer
from ebla.storage.layers.rocks_engine import RocksEngine

pytestmark = runs_in(real_time)

AT_US = 1_700_000_000_000_000
ROWS = 20_000


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig("rocks", tmp_path)
    yield made
    made.close()


def bare(folder: str) -> Rdict:
    """A database opened the naive way."""
    options = Options(raw_mode=True)
    return Rdict(folder, options)


def damaged_base(rig: Rig) -> str:
    """A base of many blocks, one of which, in the middle, is not what was written."""
    rig.run(build_layer(rig.engine, rig.path("base"), rows(range(ROWS)), at(AT_US, ROWS)))
    largest = max(Path(rig.path("base")).glob("*.sst"), key=lambda file: file.stat().st_size)
    content = bytearray(largest.read_bytes())
    content[len(content) // 2] ^= 0xFF
    largest.write_bytes(content)
    return rig.path("base")


def with_base(rig: Rig, folder: str, act: Callable[[Layer], None], *, writable: bool = False) -> None:
    async def main() -> None:
        base = await rig.engine.open(folder, writable=writable)
        try:
            act(base)
        finally:
            await base.discard()

    rig.run(main())


def test_a_scan_over_damage_ends_in_silence(rig: Rig) -> None:
    folder = damaged_base(rig)
    database = bare(folder)
    assert 0 < len(list(database.items())) < ROWS
    database.close()

    def scan(layer: Layer) -> None:
        found: list[Item] = []
        with pytest.raises(LayerDamaged, match="ebla store verify"):
            found.extend(layer.scan())
        assert 0 < len(found) < ROWS

    with_base(rig, folder, scan)
    with_base(rig, folder, scan, writable=True)


def first_unreadable(layer: Layer) -> int:
    for number in range(ROWS):
        try:
            layer.get(key(number))
        except LayerDamaged:
            return number
    raise AssertionError("every row can be read")


def test_damage_at_every_place_of_a_scan_is_told(rig: Rig) -> None:
    """At its first row, within its first rows, right behind them, and at the start of a later batch."""
    folder = damaged_base(rig)

    def scan(layer: Layer) -> None:
        bad = first_unreadable(layer)
        for before in (0, 1, 15, 16, 17, 79, 80, 81, 336):
            with pytest.raises(LayerDamaged):
                list(layer.scan(key(bad - before)))
        assert list(layer.scan(key(bad - 5), key(bad - 1))) == rows(range(bad - 5, bad - 1))
        with pytest.raises(LayerDamaged):
            layer.get_many([key(1), key(bad)])
        assert layer.get(key(1)) == rows([1])[0][1]

    with_base(rig, folder, scan)


def test_a_missing_file_is_damage(rig: Rig) -> None:
    folder = damaged_base(rig)
    max(Path(folder).glob("*.sst"), key=lambda file: file.stat().st_size).unlink()
    with pytest.raises(LayerDamaged) as caught:
        with_base(rig, folder, lambda _layer: None, writable=True)
    assert caught.value.folder == folder


def test_the_lower_bound_overwrites_the_upper_one(rig: Rig) -> None:
    database = bare(rig.path("bare"))
    for name in (b"a", b"b", b"c"):
        database[name] = name
    bounds = ReadOptions()
    bounds.set_iterate_upper_bound(b"c")
    bounds.set_iterate_lower_bound(b"b")
    assert list(database.keys(read_opt=bounds)) == [b"a"]
    database.close()

    def scan(layer: Layer) -> None:
        assert list(layer.scan(key(5), key(9))) == rows(range(5, 9))

    rig.run(build_layer(rig.engine, rig.path(), rows(range(30)), at(AT_US, 30)))
    with_base(rig, rig.path(), scan)


def test_a_snapshot_sees_later_puts(rig: Rig) -> None:
    """Ours: `test_a_scan_sees_the_layer_as_it_was` of the contract."""
    database = bare(rig.path("bare"))
    database[b"a"] = b"1"
    snapshot = database.snapshot()
    database[b"b"] = b"2"
    assert len(list(snapshot.items())) == 2
    cursor = database.iter()
    database[b"c"] = b"3"
    cursor.seek(b"c")
    assert not cursor.valid()


def test_an_opened_database_forgets_the_shared_cache(rig: Rig) -> None:
    engine = RocksEngine(rig.disk, SMALL_LAYERS)
    rig.run(build_layer(engine, rig.path(), rows(range(ROWS)), at(AT_US, ROWS)))

    async def main(reader: Callable[[], object]) -> int:
        before = engine._cache.get_usage()
        reader()
        return engine._cache.get_usage() - before

    plain = Rdict(rig.path(), engine._options)
    assert rig.run(main(lambda: [plain[key(number)] for number in range(0, ROWS, 100)])) == 0
    plain.close()
    layer = rig.run(engine.open(rig.path(), writable=False))
    assert rig.run(main(lambda: layer.get_many([key(number) for number in range(0, ROWS, 100)]))) > 100_000
    rig.run(layer.close())


def test_a_live_cursor_keeps_the_lock(rig: Rig) -> None:
    database = bare(rig.path("bare"))
    database[b"a"] = b"1"
    cursor = database.iter()
    database.close()
    with pytest.raises(Exception, match="lock hold by current process"):
        bare(rig.path("bare"))
    del cursor
    bare(rig.path("bare")).close()


def test_scans_and_errors_do_not_keep_the_lock(rig: Rig) -> None:
    folder = damaged_base(rig)

    async def main() -> None:
        base = await rig.engine.open(folder, writable=True)
        begun = base.scan()
        next(begun)
        with pytest.raises(LayerDamaged) as caught:
            list(base.scan())
        await base.close()
        again = await rig.engine.open(folder, writable=True)
        assert caught.value.__traceback__ is not None
        await again.close()
        del begun

    rig.run(main())


async def test_a_folder_is_open_for_writing_once(rig: Rig) -> None:
    layer = await rig.engine.open(rig.path(), writable=True)
    layer.put_batch(rows([1]), at(AT_US))
    with pytest.raises(Refused, match="open elsewhere"):
        await rig.engine.open(rig.path(), writable=True)
    await layer.close()


class SlowEngine(RocksEngine):
    """Opens a database when the test lets it, and says where."""

    def __init__(self, disk: Disk) -> None:
        super().__init__(disk)
        self.begun, self.may_end = threading.Event(), threading.Event()
        self.threads: list[int] = []

    def open_database(self, folder: str, *, writable: bool) -> Rdict:
        self.threads.append(threading.get_ident())
        database = super().open_database(folder, writable=writable)
        self.begun.set()
        self.may_end.wait(10)
        return database


async def test_an_abandoned_open_leaves_no_lock(rig: Rig) -> None:
    engine = SlowEngine(rig.disk)
    layer = await rig.engine.open(rig.path(), writable=True)
    layer.put_batch(rows([1]), at(AT_US))
    await layer.close()
    opening = asyncio.get_running_loop().create_task(engine.open(rig.path(), writable=True))
    while not engine.begun.is_set():  # noqa: ASYNC110  # set by a thread
        await asyncio.sleep(0)
    opening.cancel()
    engine.may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await opening
    again = await engine.open(rig.path(), writable=True)
    assert again.get(rows([1])[0][0]) is not None
    await again.close()


async def test_the_first_write_to_a_stack_opens_no_files_on_the_loop(rig: Rig) -> None:
    """It takes long enough to make a shard that has many new tablets look dead to its control."""
    engine = SlowEngine(rig.disk)
    engine.may_end.set()
    store = await open_new_store(rig.disk, SystemRng(), rig.path("shard"), engine, limits())
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(store.run())
        await store.set_schema(SMALL)
        stack = await store.create(SMALL.id, WHOLE_RING)
        assert (await store.open(stack)).read(key_of(1, 1)) is None
        assert stack.find_live() is None
        live = await store.open_live(stack)
        assert stack.find_live() is live
        store.write_open(stack, live, [(key_of(1, 1), value_of(Row(marker=RowMarker(AT_US), deletion=None, cells={})))])
        assert len(engine.threads) == 1
        assert engine.threads != [threading.get_ident()]
        await store.close()
        running.cancel()


def test_the_librarys_own_log_is_off(rig: Rig) -> None:
    assert getattr(WriteOptions(), "disable_wal") is False, "a property, though its stub says it is a method"  # noqa: B009  # a plain attribute is a method to mypy
    layer = rig.run(rig.engine.open(rig.path(), writable=True))
    layer.put_batch(rows(range(1000)), at(AT_US, 1000))
    logs = list(Path(rig.path()).glob("*.log"))
    assert logs
    assert [log.stat().st_size for log in logs] == [0] * len(logs)
    rig.run(layer.close())


async def test_a_put_that_would_wait_is_refused(rig: Rig) -> None:
    """Waiting would stop the loop and every other thread with it."""
    engine = RocksEngine(rig.disk, write_buffer_bytes=64 << 10)
    layer = await engine.open(rig.path(), writable=True)
    refused, taken = 0, 0
    for number in range(0, 400_000, 50):
        batch = rows(range(number, number + 50), size=600)
        try:
            layer.put_batch(batch, at(AT_US + number, 50))
            taken += 50
        except Overloaded:
            refused += 1
            if refused == 3:
                break
            await layer.flush()
    assert refused == 3
    await layer.flush()
    layer.put_batch(rows([10_000_000]), at(AT_US))
    assert len(list(layer.scan())) == taken + 1
    assert layer.facts.rows == taken + 1
    await layer.close()


WRITE_AND_DIE = """
    import asyncio, os, signal, sys
    from ebla.model.errors import Overloaded
    from ebla.runtime.file_disk import FileDisk
    from ebla.storage.layers.layer_facts import LayerFacts
    from ebla.storage.layers.rocks_engine import RocksEngine

    async def main():
        engine = RocksEngine(FileDisk(), write_buffer_bytes=64 << 10)
        layer = await engine.open(sys.argv[1], writable=True)
        for number in range(300):
            timestamp_us = 1_000 + number * 1_000 - 999 * (number % 7)
            while True:
                try:
                    row = (number.to_bytes(8), b"." * 2000)
                    layer.put_batch([row], LayerFacts(least_us=timestamp_us, greatest_us=timestamp_us, rows=1))
                    break
                except Overloaded:
                    await asyncio.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)

    asyncio.run(main())
"""


def test_rows_never_become_durable_without_their_facts(rig: Rig) -> None:
    """Buffers that the library flushes on its own contain the facts of their rows."""
    script = textwrap.dedent(WRITE_AND_DIE)
    run = subprocess.run([sys.executable, "-c", script, rig.path()], capture_output=True, text=True, check=False)
    assert run.returncode == -signal.SIGKILL, run.stderr

    async def main() -> None:
        killed = await RocksEngine(rig.disk).open(rig.path(), writable=True)
        survived = [int.from_bytes(found[:8]) for found, _ in killed.scan()]
        assert survived, "600 kB in buffers of 64 kB were written out at least once"
        for number in survived:
            assert killed.facts.covers(at(1_000 + number * 1_000 - 999 * (number % 7)))
        await killed.close()

    rig.run(main())


DISK_FULL = """
    import asyncio, os, sys
    from ebla.model.errors import DiskFull
    from ebla.runtime.file_disk import FileDisk
    from ebla.storage.layers.layer_facts import LayerFacts
    from ebla.storage.layers.rocks_engine import RocksEngine

    def facts(number):
        return LayerFacts(least_us=number, greatest_us=number, rows=1)

    async def fill(layer, start):
        for number in range(start, start + 100_000):
            try:
                layer.put_batch([(number.to_bytes(8), os.urandom(4000))], facts(number))
            except DiskFull:
                return number
            if number % 50 == 0:
                await asyncio.sleep(0)
        raise SystemExit("the disk never became full")

    async def come_back(layer, number):
        for _ in range(300):
            try:
                layer.put_batch([(number.to_bytes(8), b"back")], facts(number))
                await layer.flush()
                return
            except DiskFull:
                await asyncio.sleep(0.1)
        raise SystemExit("it did not come back")

    async def main():
        disk = FileDisk()
        engine = RocksEngine(disk, write_buffer_bytes=1 << 20)
        layer = await engine.open(f"{sys.argv[1]}/layer", writable=True)
        with open(f"{sys.argv[1]}/ballast", "wb") as ballast:
            ballast.write(bytes(8 << 20))
        taken = await fill(layer, 1)
        try:
            await layer.flush()
        except DiskFull:
            pass
        else:
            raise SystemExit("a flush succeeded on a full disk")
        assert len(list(layer.scan())) == taken - 1
        assert len(layer.get((taken - 1).to_bytes(8))) == 4000
        os.unlink(f"{sys.argv[1]}/ballast")
        await come_back(layer, taken)
        await layer.close()
        again = await engine.open(f"{sys.argv[1]}/layer", writable=False)
        assert len(list(again.scan())) == taken
        await again.close()
        disk.close()

    asyncio.run(main())
"""


def test_a_full_disk_refuses_puts_keeps_reading_and_comes_back(tmp_path: Path) -> None:
    """On a small file system of its own, in a mount namespace of its own."""
    script = tmp_path / "disk_full.py"
    script.write_text(textwrap.dedent(DISK_FULL))
    small = tmp_path / "small"
    small.mkdir()
    in_namespace = ["unshare", "--map-root-user", "--mount", "sh", "-c"]
    mount = f"mount -t tmpfs -o size=14m tmpfs {small}"
    if subprocess.run([*in_namespace, mount], capture_output=True, check=False).returncode:
        pytest.skip("this machine does not let us mount a file system")
    command = [*in_namespace, f"{mount} && exec {sys.executable} {script} {small}"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
