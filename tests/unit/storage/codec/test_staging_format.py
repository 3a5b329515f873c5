"""What the bulk process leaves for the shards: read as it was written, or not at all."""

import uuid

import msgspec
import pytest
from tests.async_tests import runs_in
from tests.unit.journal.on_disks import Machine

from ebla.journal.checked_file import replace_file
from ebla.model.errors import Corruption, Refused
from ebla.model.identity import AttemptId, SessionId, ShardNumber, TableId, TransferId
from ebla.model.token import WHOLE_RING
from ebla.model.transfers import StagingKind
from ebla.sim.disk import ProcessDisk
from ebla.storage.codec.staging_format import (
    SEALED_LAYERS_MAX,
    STAGING_FORMAT,
    SealedFile,
    SealedLayer,
    TargetFile,
    checkpoints_folder,
    is_inside,
    read_sealed,
    read_target,
    sealed_path,
    staging_folder,
    target_path,
    transfer_folder,
    write_sealed,
    write_target,
)
from ebla.storage.manifest import Incarnation

FOLDER = "/data"
TARGET = TargetFile(
    table=TableId(uuid.UUID(int=1)),
    shard=ShardNumber(2),
    incarnation=Incarnation(3),
    range=WHOLE_RING,
    kind=StagingKind.FILES,
)
SEALED = SealedFile(attempt=AttemptId(uuid.UUID(int=4)), layers=(SealedLayer("sealed-x/0", WHOLE_RING),), size_bytes=5)


def test_names_are_where_all_look_for_them() -> None:
    session, transfer = SessionId(uuid.UUID(int=1)), TransferId(uuid.UUID(int=2))
    folder = transfer_folder(staging_folder("/node"), session, transfer)
    assert folder == f"/node/staging/{session}/{transfer}"
    assert target_path(folder) == f"{folder}/target"
    assert sealed_path(folder) == f"{folder}/SEALED"
    assert checkpoints_folder("/node") == "/node/checkpoints"


def test_files_are_read_as_they_were_written() -> None:
    async def work(disk: ProcessDisk) -> None:
        assert await read_target(disk, FOLDER) is None
        assert await read_sealed(disk, FOLDER) is None
        await write_target(disk, FOLDER, TARGET)
        await write_sealed(disk, FOLDER, SEALED)

    async def read(disk: ProcessDisk) -> None:
        assert await read_target(disk, FOLDER) == TARGET
        assert await read_sealed(disk, FOLDER) == SEALED

    machine = Machine(1)
    machine.run(work)
    machine.lose_power()
    machine.run(read)


@runs_in(lambda work: Machine(1).run(work))
async def test_a_newer_format_and_other_content_are_refused(disk: ProcessDisk, /) -> None:
    newer = msgspec.structs.replace(SEALED, format=STAGING_FORMAT + 1)
    await replace_file(disk, sealed_path(FOLDER), msgspec.msgpack.encode(newer))
    with pytest.raises(Refused, match="format 2"):
        await read_sealed(disk, FOLDER)
    await replace_file(disk, target_path(FOLDER), b"\xc1")
    with pytest.raises(Corruption):
        await read_target(disk, FOLDER)


@pytest.mark.parametrize(
    "sealed",
    [
        SealedFile(attempt=SEALED.attempt, layers=(SealedLayer("../../shard-0/layers/x", WHOLE_RING),)),
        SealedFile(attempt=SEALED.attempt, layers=(SealedLayer("/etc", WHOLE_RING),)),
        SealedFile(attempt=SEALED.attempt, rows_file="x/./rows"),
        SealedFile(
            attempt=SEALED.attempt,
            layers=tuple(SealedLayer(str(one), WHOLE_RING) for one in range(SEALED_LAYERS_MAX + 1)),
        ),
    ],
)
@runs_in(lambda work: Machine(1).run(work))
async def test_a_seal_names_nothing_outside_of_its_transfer_and_not_too_much(
    disk: ProcessDisk, /, sealed: SealedFile
) -> None:
    with pytest.raises(AssertionError):
        await write_sealed(disk, FOLDER, sealed)
    await replace_file(disk, sealed_path(FOLDER), msgspec.msgpack.encode(sealed))
    with pytest.raises(Corruption, match="outside of its folder"):
        await read_sealed(disk, FOLDER)


@pytest.mark.parametrize(
    ("path", "inside"),
    [("/a/b", True), ("/a/b/c", True), ("/a", False), ("/a/", False), ("/ab/c", False), ("/a/../b", False)],
)
def test_what_is_inside_a_folder(path: str, inside: bool) -> None:
    assert is_inside(path, "/a") is inside
