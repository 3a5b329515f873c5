"""Engines on a real folder, and rows to put into their layers."""

import asyncio
import shutil
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar

from ebla.options import NodeLimits
from ebla.runtime.file_disk import FileDisk
from ebla.storage.layers.layer import Item, LayerEngine
from ebla.storage.layers.layer_facts import LayerFacts
from ebla.storage.layers.memory_engine import MemoryEngine
from ebla.storage.layers.rocks_engine import RocksEngine

T = TypeVar("T")
SMALL = NodeLimits(shard_cache_bytes_max=4 << 20, shard_unflushed_bytes_max=32 << 20)
ENGINES: dict[str, Callable[[FileDisk], LayerEngine]] = {
    "rocks": lambda disk: RocksEngine(disk, SMALL),
    "memory": MemoryEngine,
}


class Rig:
    """One engine, the folder of its layers, and a loop to run on."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind = kind
        self.folder = folder
        self.disk = FileDisk()
        self.engine = ENGINES[kind](self.disk)

    def path(self, name: str = "layer") -> str:
        return str(self.folder / name)

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        return asyncio.run(main)

    def killed(self, name: str = "layer") -> str:
        """The folder as a kill of the process at this moment would leave it, under another name.

        For a layer of few flushes: a copy takes longer than a kill, and files must not be merged meanwhile."""
        number = len(list(self.folder.glob(f"{name}-killed-*")))
        copy = self.path(f"{name}-killed-{number}")
        if (self.folder / name).exists():
            shutil.copytree(self.path(name), copy)
        return copy

    def write(self, name: str, content: bytes) -> None:
        (self.folder / name).write_bytes(content)

    def read(self, name: str) -> bytes:
        return (self.folder / name).read_bytes()

    def links(self, name: str) -> int:
        """The most names that any file of a folder has."""
        return max(file.stat().st_nlink for file in (self.folder / name).iterdir())

    def close(self) -> None:
        self.disk.close()


def key(number: int) -> bytes:
    return number.to_bytes(8) + b"\0\x04" + b"key!" + b"\x02"


def rows(numbers: Sequence[int], text: str = "value", size: int = 60) -> list[Item]:
    return [(key(number), f"{text} {number} ".encode().ljust(size, b".")) for number in numbers]


def at(timestamp_us: int, count: int = 1) -> LayerFacts:
    """Facts of plain rows written at one moment."""
    return LayerFacts(least_us=timestamp_us, greatest_us=timestamp_us, rows=count)
