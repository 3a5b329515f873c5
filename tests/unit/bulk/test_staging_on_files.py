"""Staging on the real file system: links, and a task in another process that does not stop writing."""

import asyncio
import os
import subprocess
import sys
import zlib
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from tests.unit.bulk.staging_rig import (
    FILES,
    FIRST,
    RANGES,
    SESSION,
    TRANSFER,
    order_of,
    target,
    transfer_context,
)
from tests.unit.storage.small_table import SMALL

from ebla.bulk.open_puts import OpenPuts
from ebla.bulk.seal import Sealer, SealSpec
from ebla.bulk.staging import StagedTransfer, Staging
from ebla.bulk.transfer_limits import TransferLimits
from ebla.model.transfers import StagedFile
from ebla.runtime import file_isolation
from ebla.runtime.file_disk import FileDisk
from ebla.runtime.file_isolation import FileIsolation

ZOMBIE = """
import os, sys
held = os.open(sys.argv[1], os.O_RDWR)
print("open", flush=True)
sys.stdin.readline()
os.pwrite(held, b"from the grave", 0)
try:
    os.close(os.open(sys.argv[1], os.O_RDWR))
    print("found it", flush=True)
except FileNotFoundError:
    print("it is gone", flush=True)
"""


class Rig:
    def __init__(self, folder: Path, disk: FileDisk) -> None:
        self.place = folder / "staging" / str(SESSION) / str(TRANSFER)
        context = transfer_context(disk, FileIsolation(), str(folder / "staging"), TransferLimits())
        self.staging = Staging(context)
        self.sealer = Sealer(context, OpenPuts(context, self.staging))

    async def opened(self) -> StagedTransfer:
        await self.staging.recover()
        return await self.staging.open(SESSION, TRANSFER, target())

    def bring(self) -> None:
        """As a task does on the link path where it cannot link."""
        for name, data in FILES.items():
            path = self.place / str(FIRST) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)

    def sealed_files(self) -> dict[str, Path]:
        (folder,) = self.place.glob("sealed-*")
        return {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}


def on_files(folder: Path, story: Callable[[Rig], Awaitable[None]]) -> None:
    async def main() -> None:
        disk = FileDisk()
        try:
            await story(Rig(folder, disk))
        finally:
            disk.close()

    asyncio.run(main())


def contents(files: dict[str, Path]) -> dict[str, bytes]:
    return {name: path.read_bytes() for name, path in files.items()}


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has leases")
def test_a_task_that_still_writes_does_not_reach_what_was_sealed(tmp_path: Path) -> None:
    """INV-XFER-4."""

    async def story(rig: Rig) -> None:
        staged = await rig.opened()
        rig.bring()
        before = {path.name: path.stat().st_ino for path in (rig.place / str(FIRST)).rglob("*")}
        zombie = start_zombie(rig.place / str(FIRST) / "0/000001.sst")
        try:
            await rig.sealer.seal(staged, order_of(FIRST))
            assert staged.copied_files == 1
            assert output_of(zombie) == "it is gone"
        finally:
            zombie.kill()
            zombie.communicate()
        files = rig.sealed_files()
        assert contents(files) == FILES
        kept = {name for name, path in files.items() if path.stat().st_ino == before[path.name]}
        assert kept == {"0/CURRENT", "1/000002.sst"}, "only what was open is copied"

    on_files(tmp_path, story)


def start_zombie(path: Path) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", ZOMBIE, str(path)]
    zombie = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert zombie.stdout is not None
    assert zombie.stdout.readline() == "open\n"
    return zombie


def output_of(zombie: "subprocess.Popen[str]") -> str:
    """Released, it writes and looks for its name."""
    assert zombie.stdin is not None
    assert zombie.stdout is not None
    zombie.stdin.write("\n")
    zombie.stdin.flush()
    return zombie.stdout.readline().strip()


def test_without_leases_every_file_is_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_isolation, "_LEASES", False)

    async def story(rig: Rig) -> None:
        staged = await rig.opened()
        rig.bring()
        await rig.sealer.seal(staged, order_of(FIRST))
        assert staged.copied_files == len(FILES)
        assert contents(rig.sealed_files()) == FILES

    on_files(tmp_path, story)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has leases")
def test_a_link_is_taken_over_as_it_is(tmp_path: Path) -> None:
    source = tmp_path / "source.sst"
    source.write_bytes(b"rows")

    async def story(rig: Rig) -> None:
        staged = await rig.opened()
        linked, symbolic = rig.place / str(FIRST) / "0/a.sst", rig.place / str(FIRST) / "0/b.sst"
        make_links(source, linked, symbolic)
        brought = (
            StagedFile(name="0/a.sst", size_bytes=4, inode=source.stat().st_ino),
            StagedFile(name="0/b.sst", size_bytes=len(os.fsencode(source)), checksum=zlib.crc32(b"rows")),
        )
        await rig.sealer.seal(staged, SealSpec(attempt=FIRST, files=brought, layers=RANGES[:1], schema=SMALL))
        files = rig.sealed_files()
        assert files["0/a.sst"].stat().st_ino == source.stat().st_ino
        assert not files["0/b.sst"].is_symlink(), "it could be pointed elsewhere later"
        assert contents(files) == {"0/a.sst": b"rows", "0/b.sst": b"rows"}

    on_files(tmp_path, story)


class SlowlyRemoving(FileDisk):
    """Tells what another process finds while a folder is removed file by file."""

    def __init__(self, look: Callable[[], bool]) -> None:
        super().__init__()
        self.look = look
        self.found: list[bool] = []

    def remove_folder(self, path: str) -> None:
        self.found.append(self.look())
        super().remove_folder(path)


@pytest.mark.parametrize("given_back", [True, False])
def test_what_is_removed_is_out_of_reach_before_its_first_file_goes(tmp_path: Path, given_back: bool) -> None:
    """INV-XFER-3: a shard that adopts under a guard of its own lists a sealed folder and links what is there."""

    async def main() -> None:
        disk = SlowlyRemoving(lambda: rig.place.exists())
        rig = Rig(tmp_path, disk)
        try:
            staged = await rig.opened()
            rig.bring()
            await rig.sealer.seal(staged, order_of(FIRST))
            disk.found.clear()
            if given_back:
                await rig.staging.release(SESSION, [TRANSFER])
                assert not rig.place.exists()
                await rig.staging.remove_leftovers()
            else:
                await rig.staging.drop_session(SESSION)
        finally:
            disk.close()
        assert disk.found == [False]
        assert [path for path in (tmp_path / "staging").rglob("*") if path.is_file()] == []

    asyncio.run(main())


def test_a_removal_that_was_interrupted_is_ended_later(tmp_path: Path) -> None:
    """INV-XFER-5."""

    async def story(rig: Rig) -> None:
        left = tmp_path / "staging" / "going-0123" / str(TRANSFER)
        left.mkdir(parents=True)
        await rig.opened()
        assert not left.exists()
        left.mkdir(parents=True)
        await rig.staging.remove_leftovers()
        assert not left.parent.exists()
        assert rig.place.exists()

    on_files(tmp_path, story)


def make_links(source: Path, linked: Path, symbolic: Path) -> None:
    linked.parent.mkdir(parents=True)
    os.link(source, linked)
    symbolic.symlink_to(source)
