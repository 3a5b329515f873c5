"""Layers on RocksDB, killed before every call that changes their files, then opened again.

Run by `test_store_crash.py`.

`python layer_crash.py FOLDER` prints one line of JSON per kill: before what, and what was wrong afterwards.
"""

import asyncio
import gc
import sys
from collections.abc import Callable, Coroutine
from typing import Any

from tests.cluster.kill_at_calls import Acknowledge, Workload, try_every_kill

from ebla.options import NodeLimits
from ebla.runtime.file_disk import FileDisk
from ebla.storage.layers.layer import Item, build_layer
from ebla.storage.layers.layer_facts import LayerFacts
from ebla.storage.layers.rocks_engine import RocksEngine

AT_US = 1_700_000_000_000_000
LIMITS = NodeLimits(shard_cache_bytes_max=1 << 20, shard_unflushed_bytes_max=4 << 20)


def rows(numbers: range, text: str) -> list[Item]:
    return [(number.to_bytes(8) + b"key", f"{text} {number}".encode() * 5) for number in numbers]


FIRST = rows(range(0, 60, 2), "first")
SECOND = rows(range(0, 60, 3), "second")
BOTH = sorted({**dict(FIRST), **dict(SECOND)}.items())
BUILT = rows(range(40), "built")
GOES_ON = rows(range(500, 501), "goes on")


async def work(engine: RocksEngine, folder: str, acknowledge: Acknowledge) -> None:
    live = await engine.open(f"{folder}/live", writable=True)
    live.put_batch(FIRST, facts_of(FIRST, AT_US))
    await live.flush()
    acknowledge()
    live.put_batch(SECOND, facts_of(SECOND, AT_US + 5))
    await live.checkpoint(f"{folder}/checkpoint")
    acknowledge()
    await build_layer(engine, f"{folder}/built", BUILT, facts_of(BUILT, AT_US))
    acknowledge()
    base = await engine.open(f"{folder}/built", writable=False)
    await base.checkpoint(f"{folder}/links")
    await base.close()
    acknowledge()
    await engine.drop(f"{folder}/built")
    acknowledge()
    await live.close()
    acknowledge()


def facts_of(items: list[Item], at_us: int) -> LayerFacts:
    return LayerFacts(least_us=at_us, greatest_us=at_us, rows=len(items))


async def check(engine: RocksEngine, folder: str, acknowledged: int) -> None:
    live = await engine.open(f"{folder}/live", writable=True)
    found = list(live.scan())
    may_be = ([[], FIRST] if acknowledged == 0 else [FIRST, BOTH]) if acknowledged < 2 else [BOTH]
    assert found in may_be or (acknowledged == 0 and found == BOTH), f"{len(found)} rows in live"
    if found:
        assert live.facts.covers(facts_of(FIRST, AT_US))
    if found == BOTH:
        assert live.facts.covers(facts_of(SECOND, AT_US + 5))
    live.put_batch(GOES_ON, facts_of(GOES_ON, AT_US + 9))
    await live.close()
    if acknowledged >= 2:
        await compare(engine, f"{folder}/checkpoint", BOTH)
    if acknowledged == 3:
        await compare(engine, f"{folder}/built", BUILT)
    if acknowledged >= 4:
        await compare(engine, f"{folder}/links", BUILT)
    for name in ("live", "checkpoint", "built", "links"):
        await engine.drop(f"{folder}/{name}")
        assert not engine.disk.exists(f"{folder}/{name}")
    await build_layer(engine, f"{folder}/built", BUILT, facts_of(BUILT, AT_US))


async def compare(engine: RocksEngine, folder: str, expected: list[Item]) -> None:
    layer = await engine.open(folder, writable=False)
    assert list(layer.scan()) == expected, f"{folder} was acknowledged and is not what it was"
    await layer.close()


def run(main: Callable[[RocksEngine], Coroutine[Any, Any, None]]) -> None:
    disk = FileDisk()
    asyncio.run(main(RocksEngine(disk, LIMITS)))
    disk.close()


def do_work(folder: str, acknowledge: Acknowledge) -> None:
    run(lambda engine: work(engine, folder, acknowledge))


def do_check(folder: str, acknowledged: int) -> None:
    run(lambda engine: check(engine, folder, acknowledged))


if __name__ == "__main__":
    gc.freeze()  # so that a collection in a child does not copy every page of this process
    try_every_kill(f"{sys.argv[1]}/layers", Workload(work=do_work, check=do_check))
