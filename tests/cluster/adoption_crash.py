"""The first start on a data folder of the previous release, killed before every call that changes a file of its stores,
then started again. Run by `test_store_crash.py`.

`python adoption_crash.py FOLDER` prints one line of JSON per kill: before what, and what was wrong afterwards.
"""

import asyncio
import gc
import shutil
import sys
import tarfile
import uuid
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import msgspec
from tests.cluster.kill_at_calls import Acknowledge, Workload, try_every_kill

from ebla.control.group0.join_state import JoinState, JoinStateFile
from ebla.control.local_stores import LocalStores
from ebla.model.identity import HostId, ShardNumber
from ebla.observe.event_reporter import discard_event
from ebla.ports.disk import Disk
from ebla.ports.environment import Environment
from ebla.runtime.file_disk import FileDisk
from ebla.runtime.system_rng import SystemRng
from ebla.storage.manifest import ShardManifest, StackEntry, read_manifest
from ebla.version import DATA_FORMAT

RELEASE = Path(__file__).parent / "fixtures" / "release-1.tar.xz"
NODE = "data/node1"
SHARDS = 2


def on_disk(work: Callable[[Disk], Awaitable[None]]) -> None:
    disk = FileDisk()
    asyncio.run(work(disk))  # type: ignore[arg-type]  # a coroutine of an async function
    disk.close()


async def start(folder: str, disk: Disk) -> None:
    """What control does before it listens."""
    environment = Environment(clock=None, rng=SystemRng(), disk=disk, transport=None)  # type: ignore[arg-type]  # unused
    mark = JoinStateFile(disk, f"{folder}/group0-mark")
    stores = LocalStores(environment, folder, HostId(uuid.UUID(int=1)), mark, discard_event)

    async def is_past_none() -> bool:
        return True

    await stores.prepare(SHARDS, is_past_none)
    for number in range(SHARDS):
        await stores.check(ShardNumber(number))


async def mark_of(folder: str, disk: Disk) -> JoinState:
    return await JoinStateFile(disk, f"{folder}/group0-mark").load()


async def manifests(folder: str, disk: Disk) -> list[ShardManifest]:
    found = [await read_manifest(disk, f"{folder}/shard-{number}") for number in range(SHARDS)]
    return [one for one in found if one is not None]


def content(manifest: ShardManifest) -> list[StackEntry]:
    """Without what the adoption adds."""
    return [
        msgspec.structs.replace(
            one,
            live=msgspec.structs.replace(one.live, has_files=False),
            bases=tuple(msgspec.structs.replace(base, has_files=False) for base in one.bases),
        )
        for one in manifest.stacks
    ]


async def check(folder: str, unpacked: str, disk: Disk) -> None:
    """The next start goes on with the ids that were drawn, and everything is there."""
    drawn = await mark_of(folder, disk)
    await start(folder, disk)
    mark = await mark_of(folder, disk)
    assert [one.store for one in mark.stores[: len(drawn.stores)]] == [one.store for one in drawn.stores]
    assert msgspec.structs.replace(mark, stores=()) == msgspec.structs.replace(drawn, stores=())
    assert all(one.is_created and one.stamped for one in mark.stores)
    before, after = await manifests(f"{unpacked}/{NODE}", disk), await manifests(folder, disk)
    assert [one.store for one in after] == [one.store for one in mark.stores]
    assert [content(one) for one in after] == [content(one) for one in before]


def check_files(folder: str, unpacked: str) -> None:
    for log in Path(unpacked, NODE).glob("shard-*/log/*.log"):
        kept = Path(folder, log.relative_to(Path(unpacked, NODE)))
        assert kept.read_bytes().rstrip(b"\0") == log.read_bytes()
    assert Path(folder, "FORMAT").read_text() == f"{DATA_FORMAT}\n"


def main(folder: str) -> None:
    unpacked = f"{folder}/release"
    with tarfile.open(RELEASE) as packed:
        packed.extractall(unpacked, filter="tar")
    for log in Path(unpacked, NODE).glob("shard-*/log/*.log"):
        log.write_bytes(log.read_bytes().rstrip(b"\0"))  # what is only reserved takes most of the time to copy
    workload = Workload(
        work=lambda data, acknowledge: _work(f"{data}/{NODE}", acknowledge),
        check=lambda data, _answered: _check(f"{data}/{NODE}", unpacked),
        prepare=lambda data: _prepare(data, unpacked),
        name="adoption",
    )
    try_every_kill(f"{folder}/try", workload)


def _work(node: str, acknowledge: Acknowledge) -> None:
    on_disk(partial(start, node))
    acknowledge()


def _check(node: str, unpacked: str) -> None:
    on_disk(partial(check, node, unpacked))
    check_files(node, unpacked)


def _prepare(data: str, unpacked: str) -> None:
    others = shutil.ignore_patterns("tls", "run", "group0", "checkpoints", "staging")
    shutil.copytree(f"{unpacked}/{NODE}", f"{data}/{NODE}", ignore=others)


if __name__ == "__main__":
    gc.freeze()  # so that a collection in a child does not copy every page of this process
    main(sys.argv[1])
