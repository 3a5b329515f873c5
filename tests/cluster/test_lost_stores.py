"""A node never serves from a lost store or from an old copy of its folder, on real processes: INV-START-1 to
INV-START-4 (INV-START-2: an older copy is refused at each of its starts)."""

import asyncio
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cluster.conftest import LocalNodes, eventually
from tests.cluster.rows_load import (
    Numbers,
    TableSpec,
    create_table,
    read_numbers,
    read_once,
    write_numbers,
)

from ebla.model.consistency import ConsistencyLevel
from ebla.model.errors import EblaError
from ebla.options import NodeLimits
from ebla.runtime.file_disk import FileDisk
from ebla.runtime.system_rng import SystemRng
from ebla.storage.layers.rocks_engine import RocksEngine
from ebla.storage.manifest import read_manifest
from ebla.storage.store_limits import StoreLimits
from ebla.storage.store_recovery import open_store

ONE, QUORUM, ALL = ConsistencyLevel.ONE, ConsistencyLevel.QUORUM, ConsistencyLevel.ALL
KEYS = range(40)
THIRD = 2
WAIT_S = 60


class ThreeNodes:
    """Three nodes of two shards, and a table with a replica on each."""

    def __init__(self, nodes: LocalNodes) -> None:
        self.nodes = nodes
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        self.start(0, 1, 2)
        nodes.wait_all_up()
        self.rows: Numbers = create_table(nodes.nodes[0], TableSpec(keyspace="ks", replicas=3))
        self.write(1)

    def start(self, *numbers: int) -> None:
        for number in numbers:
            self.processes[number] = self.nodes.start(number)

    def stop(self, number: int, how: signal.Signals = signal.SIGTERM) -> None:
        self.processes[number].send_signal(how)
        self.processes[number].wait(WAIT_S)
        eventually(self.nodes.nodes[number].is_gone, "its children are gone")

    def write(self, value: int, level: ConsistencyLevel = QUORUM) -> None:
        write_numbers(self.rows, (self.nodes.nodes[1], 0), dict.fromkeys(KEYS, value), level)

    def read(self, number: int, level: ConsistencyLevel) -> set[int | None]:
        return set(read_numbers(self.rows, (self.nodes.nodes[number], 0), KEYS, level))

    def folder(self, number: int) -> Path:
        return self.nodes.nodes[number].folder.path

    def refused(self, number: int, status: int, *words: str) -> None:
        """The start ends with this status, and the reason is on standard error and in `ebla status`."""
        self.start(number)
        assert self.processes[number].wait(WAIT_S) == status, self.nodes.output(number)
        said = self.nodes.output(number).splitlines()[-1]
        kept = self.nodes.nodes[number].folder.last_stop.read_text()
        for word in (*words, "Nothing was changed", "ebla group0 remove", "start this machine with an empty folder"):
            assert word in said
            assert word in kept

    def up_again(self, number: int) -> None:
        self.start(number)
        self.nodes.wait_all_up()


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ThreeNodes]:
    """One cluster for all tests."""
    nodes = LocalNodes(tmp_path_factory.mktemp("t") / "c", 3, shards=2)
    try:
        yield ThreeNodes(nodes)
    finally:
        nodes.end_all()


def test_a_node_that_lost_a_store_does_not_start(three: ThreeNodes, tmp_path: Path) -> None:
    folder = three.folder(THIRD)
    aside = tmp_path / "aside"
    aside.mkdir()
    three.stop(THIRD)

    shutil.move(folder / "shard-1", aside)
    three.refused(THIRD, 1, "shard 1: store ", f" is missing in {folder}/shard-1", "is its disk mounted?")
    assert not (folder / "shard-1").exists()
    shutil.move(aside / "shard-1", folder)

    three.up_again(THIRD)
    three.write(2, ALL)
    three.stop(THIRD, signal.SIGKILL)
    shutil.move(folder / "shard-0" / "log", aside)
    three.refused(THIRD, 1, "shard 0: the commit log of store ", f" is missing in {folder}/shard-0")
    # The log of another store is as bad as none.
    shutil.copytree(folder / "shard-1" / "log", folder / "shard-0" / "log")
    three.refused(THIRD, 1, f"shard 0: {folder}/shard-0 holds commit log ", " instead of ")
    shutil.rmtree(folder / "shard-0" / "log")
    shutil.move(aside / "log", folder / "shard-0")

    three.up_again(THIRD)
    assert three.read(THIRD, ONE) == {2}
    # The same check runs before a shard is started again.
    shutil.move(folder / "shard-0" / "log", aside)
    (pid,) = [each.pid for each in three.nodes.node(THIRD).processes if each.name == "shard-0"]
    assert pid is not None
    subprocess.run(["kill", "-9", str(pid)], check=True)
    assert three.processes[THIRD].wait(WAIT_S) == 1
    assert "shard 0: the commit log of store " in three.nodes.output(THIRD)
    shutil.move(aside / "log", folder / "shard-0")

    # A stopped node's folder may be moved: it is the same folder.
    shutil.move(folder, aside)
    shutil.move(aside / folder.name, folder)
    three.up_again(THIRD)
    assert three.read(THIRD, QUORUM) == {2}


def test_rows_that_a_node_missed_are_read_although_another_one_lost_its_stores(
    three: ThreeNodes, tmp_path: Path
) -> None:
    folder, shards = three.folder(THIRD), ("shard-0", "shard-1")
    three.stop(0)
    three.write(3)
    three.up_again(0)
    three.stop(THIRD)
    older = tmp_path / "older"
    shutil.copytree(folder / "shard-1" / "log", older)
    for shard in shards:
        shutil.move(folder / shard, tmp_path)
    three.refused(THIRD, 1, "shard 0: store ", f" is missing in {folder}/shard-0")
    assert three.read(0, QUORUM) == {3}, "by the nodes that are left"
    for shard in shards:
        shutil.move(tmp_path / shard, folder)
    three.up_again(THIRD)
    assert three.read(THIRD, ONE) == {3}

    # A commit log that was put back from before this start.
    three.stop(THIRD)
    shutil.move(folder / "shard-1" / "log", tmp_path)
    shutil.copytree(older, folder / "shard-1" / "log")
    three.refused(THIRD, 1, f"shard 1: {folder}/shard-1/log is an older copy: it ends at incarnation ")
    shutil.rmtree(folder / "shard-1" / "log")
    shutil.move(tmp_path / "log", folder / "shard-1")
    three.up_again(THIRD)


def test_a_whole_cluster_restarts_by_itself_and_a_lone_node_says_what_it_waits_for(three: ThreeNodes) -> None:
    three.write(4, ALL)
    for process in three.processes.values():
        process.kill()
    for number, process in three.processes.items():
        process.wait(WAIT_S)
        eventually(three.nodes.nodes[number].is_gone, "its children are gone")
    three.start(0)
    waits = "waits for group 0 to confirm start "
    eventually(lambda: waits in three.nodes.view_from(0).nodes[0].trouble, "it says so", WAIT_S)
    addresses = ", ".join(node.options.address for node in three.nodes.nodes[1:])
    eventually(
        lambda: f"no answer from {addresses}" in three.nodes.view_from(0).nodes[0].trouble, "and who is away", WAIT_S
    )
    three.start(1)
    eventually(lambda: three.nodes.view_from(0).nodes[0].trouble == "", "a majority is enough", WAIT_S)
    assert three.read(0, QUORUM) == {4}
    three.up_again(2)
    assert three.read(2, ONE) == {4}


def test_an_older_copy_of_a_folder_does_not_serve(three: ThreeNodes, tmp_path: Path) -> None:
    """The host cannot be used any more, since its copy may have voted."""
    folder, copy = three.folder(THIRD), tmp_path / "copy"
    three.stop(THIRD)
    shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("*.sock", "*.cql"))
    three.up_again(THIRD)
    three.stop(0)
    three.write(5)
    three.up_again(0)
    three.stop(THIRD)

    # Refused by a leader that was there all the time, and by one that was restarted.
    shutil.rmtree(folder)
    shutil.copytree(copy, folder)
    three.refused(THIRD, 3)  # by what it is sent, or by its record: whichever it sees first
    for number in (0, 1):
        three.stop(number)
    three.start(0, 1)
    eventually(lambda: three.nodes.view_from(0, 1).nodes[0].trouble == "", "they serve", WAIT_S)
    # It has counted its own starts on, and is refused again all the same.
    three.refused(THIRD, 3, "this folder is an older copy of host ", "group 0 has ")
    assert three.read(0, QUORUM) == {5}


def test_lost_layers_are_not_served_as_empty_ones(three: ThreeNodes) -> None:
    """The last one: a quarantined replica stays refused."""
    (known,) = three.read(1, ONE)
    three.stop(1)
    for shard in ("shard-0", "shard-1"):
        # With few rows the commit log still has them all, and replays them.
        asyncio.run(seal_stacks(str(three.folder(1) / shard)))
        shutil.rmtree(three.folder(1) / shard / "layers")
    three.start(1)
    eventually(lambda: three.nodes.view_from(0, 1).nodes[1].trouble == "", "it serves", WAIT_S)
    assert three.read(1, ONE) == {known}, "another replica is asked"
    with pytest.raises(EblaError):
        read_once(three.rows, (three.nodes.nodes[1], 0), KEYS, ALL)
    eventually(lambda: "its files are missing" in three.nodes.output(1), "the log says why", WAIT_S)
    eventually(lambda: "replicas are refused" in " ".join(three.nodes.node(1).warnings), "so does status", WAIT_S)


async def seal_stacks(folder: str) -> None:
    """As the shard does once its live layers are large: the rows are in sealed layers, and the log is not needed."""
    disk = FileDisk()
    manifest = await read_manifest(disk, folder)
    assert manifest is not None
    assert manifest.store is not None
    engine, limits = RocksEngine(disk, NodeLimits()), StoreLimits(free_bytes_min=0)
    store = await open_store(disk, SystemRng(), folder, engine, limits, store_id=manifest.store)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(store.run())
        for stack in list(store.stacks.values()):
            await store.seal(stack)
        running.cancel()
    disk.close()
