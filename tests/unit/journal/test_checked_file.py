import zlib

import pytest
from tests.unit.journal.on_disks import Machine

from ebla.journal.checked_file import (
    FILE_CHUNK_BYTES,
    FILE_FORMAT,
    TEMPORARY_SUFFIX,
    read_checked_chunks,
    read_checked_file,
    replace_file,
    write_unsynced_file,
)
from ebla.model.errors import Corruption, DiskFull, Refused
from ebla.sim.disk import ProcessDisk

PATH = "/data/file"


def write(machine: Machine, content: bytes | list[bytes]) -> None:
    machine.run(lambda disk: replace_file(disk, PATH, content))


def read(machine: Machine) -> bytes:
    return machine.run(lambda disk: read_checked_file(disk, PATH))


@pytest.mark.parametrize("content", [b"", b"x", b"y" * FILE_CHUNK_BYTES, b"z" * (2 * FILE_CHUNK_BYTES + 5)])
def test_content_comes_back(content: bytes) -> None:
    machine = Machine(1)
    write(machine, content)
    assert read(machine) == content


@pytest.mark.parametrize("content", [b"", b"x", b"z" * (2 * FILE_CHUNK_BYTES + 5)])
def test_content_for_a_while_comes_back_as_well_and_is_never_mistaken_after_a_power_loss(content: bytes) -> None:
    async def write_short(disk: ProcessDisk) -> None:
        write_unsynced_file(disk, PATH, content)

    for seed in range(20):
        machine = Machine(seed)
        machine.run(write_short)
        assert read(machine) == content
        machine.lose_power()
        try:
            assert read(machine) == content
        except (FileNotFoundError, Corruption):
            pass  # both mean that it does not exist


def test_pieces_come_back_in_order_and_short() -> None:
    machine = Machine(1)
    write(machine, [b"a" * FILE_CHUNK_BYTES + b"b", b"", b"c"])

    async def lengths(disk: ProcessDisk) -> list[int]:
        return [len(piece) async for piece in read_checked_chunks(disk, PATH)]

    assert machine.run(lengths) == [FILE_CHUNK_BYTES, 1, 1]


def test_a_missing_file_is_no_corruption() -> None:
    with pytest.raises(FileNotFoundError):
        read(Machine(1))


def test_power_loss_leaves_the_old_or_the_new_content() -> None:
    outcomes: set[bytes] = set()
    for seed in range(300):
        machine = Machine(seed)
        write(machine, b"old")
        machine.run_until(machine.rng.between(0.0, 0.004), lambda disk: replace_file(disk, PATH, b"new" * 400))
        machine.lose_power()
        outcomes.add(read(machine))
    assert outcomes == {b"old", b"new" * 400}


def test_what_was_replaced_stays_after_power_loss() -> None:
    for seed in range(100):
        machine = Machine(seed)
        write(machine, b"old")
        write(machine, b"new")
        machine.lose_power()
        assert read(machine) == b"new"


def test_a_leftover_beside_the_place_is_no_obstacle() -> None:
    machine = Machine(1)

    async def leave(disk: ProcessDisk) -> None:
        disk.create(PATH + TEMPORARY_SUFFIX).append(b"half")

    machine.run(leave)
    write(machine, b"whole")
    assert read(machine) == b"whole"


def test_a_full_disk_keeps_the_old_content_and_leaves_nothing_beside_it() -> None:
    machine = Machine(1)
    write(machine, b"old")
    machine.disk.fill(left_bytes=100)
    with pytest.raises(DiskFull):
        write(machine, b"n" * 1000)
    assert read(machine) == b"old"
    assert machine.run(names) == ["file"]


async def names(disk: ProcessDisk) -> list[str]:
    return disk.list_folder("/data")


def test_every_damaged_byte_is_noticed_and_named() -> None:
    machine = Machine(1)
    write(machine, [b"first piece", b"second piece"])
    size = machine.run(size_of)
    for position in range(size):
        flip(machine, position)
        with pytest.raises(Corruption, match=PATH):
            read(machine)
        flip(machine, position)
    assert read(machine) == b"first piecesecond piece"


def test_a_file_that_ends_early_or_late_is_damaged() -> None:
    machine = Machine(1)
    write(machine, [b"first piece", b"second piece"])
    size = machine.run(size_of)
    for shorter in range(size):
        copy = Machine(1)
        write(copy, [b"first piece", b"second piece"])
        resize(copy, shorter)
        with pytest.raises(Corruption, match=PATH):
            read(copy)
    resize(machine, size + 1)
    with pytest.raises(Corruption, match="follow"):
        read(machine)


def test_a_newer_format_is_refused_not_called_damage() -> None:
    machine = Machine(1)
    write(machine, b"content")

    async def make_newer(disk: ProcessDisk) -> None:
        file = disk.open(PATH)
        start = file.read(0, 8) + (FILE_FORMAT + 1).to_bytes(2, "little") + bytes(2)
        file.write(0, start + zlib_checksum(start))

    machine.run(make_newer)
    with pytest.raises(Refused, match=f"format {FILE_FORMAT + 1}"):
        read(machine)


def zlib_checksum(data: bytes) -> bytes:
    return zlib.crc32(data).to_bytes(4, "little")


async def size_of(disk: ProcessDisk) -> int:
    return disk.open(PATH).size()


def flip(machine: Machine, position: int) -> None:
    async def do(disk: ProcessDisk) -> None:
        file = disk.open(PATH)
        file.write(position, bytes((file.read(position, 1)[0] ^ 0x40,)))

    machine.run(do)


def resize(machine: Machine, size: int) -> None:
    async def do(disk: ProcessDisk) -> None:
        disk.open(PATH).truncate(size)

    machine.run(do)
