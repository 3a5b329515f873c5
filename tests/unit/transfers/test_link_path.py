"""Files handed over by links: only where the folders are really here, and never over what is there."""

import os
import uuid
import zlib
from pathlib import Path

import pytest

from ebla.model.identity import (
    Address,
    AttemptId,
    CheckpointId,
    HostId,
    SessionId,
    ShardNumber,
    TableId,
    TransferId,
)
from ebla.model.token import WHOLE_RING
from ebla.model.transfers import (
    CheckpointFile,
    CheckpointLayer,
    CheckpointPart,
    StagedFile,
    StagingKind,
    TransferSource,
    TransferTarget,
)
from ebla.runtime.machine_id import machine_id
from ebla.transfers.link_path import can_link, is_reachable_folder, link_files

ATTEMPT = AttemptId(uuid.UUID(int=9))
FLIGHT_ADDRESS = Address("127.0.0.1", 1)


def source_and_target(tmp_path: Path) -> tuple[TransferSource, TransferTarget]:
    machine = f"{machine_id()}.nonce"
    checkpoint, staging = tmp_path / "checkpoint", tmp_path / "staging"
    (checkpoint / "deep" / "layer").mkdir(parents=True)
    staging.mkdir()
    (checkpoint / "deep" / "layer" / "a.sst").write_bytes(b"content")
    for folder in (checkpoint, staging):
        (folder / machine).touch()
    layer = CheckpointLayer(folder="deep/layer", range=WHOLE_RING, files=(CheckpointFile("a.sst", 7),))
    host = HostId(uuid.UUID(int=1))
    part = CheckpointPart(shard=ShardNumber(0), range=WHOLE_RING, layers=(layer,))
    source = TransferSource(
        host=host,
        checkpoint=CheckpointId(uuid.UUID(int=2)),
        table=TableId(uuid.UUID(int=3)),
        parts=(part,),
        ticket=b"",
        flight=FLIGHT_ADDRESS,
        machine=machine,
        folder=str(checkpoint),
    )
    return source, TransferTarget(
        host=host,
        shard=ShardNumber(0),
        session=SessionId(uuid.UUID(int=4)),
        transfer=TransferId(uuid.UUID(int=5)),
        kind=StagingKind.FILES,
        range=WHOLE_RING,
        ticket=b"",
        flight=FLIGHT_ADDRESS,
        machine=machine,
        folder=str(staging),
    )


def test_a_link_is_the_same_file(tmp_path: Path) -> None:
    source, target = source_and_target(tmp_path)
    assert can_link(source, target)
    moved = link_files(source, source.parts[0], target, ATTEMPT)
    staged = Path(target.folder, str(ATTEMPT), "0", "a.sst")
    inode = Path(source.folder, "deep/layer/a.sst").stat().st_ino
    assert staged.stat().st_ino == inode
    assert moved.files == (StagedFile(name="0/a.sst", size_bytes=7, inode=inode),)
    assert moved.short_cut


def test_an_attempt_is_made_once(tmp_path: Path) -> None:
    source, target = source_and_target(tmp_path)
    link_files(source, source.parts[0], target, ATTEMPT)
    with pytest.raises(FileExistsError):
        link_files(source, source.parts[0], target, ATTEMPT)


def test_where_there_are_no_links_bytes_are_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_origin: object, _to: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    source, target = source_and_target(tmp_path)
    monkeypatch.setattr(os, "link", refuse)
    moved = link_files(source, source.parts[0], target, ATTEMPT)
    assert moved.files == (StagedFile(name="0/a.sst", size_bytes=7, checksum=zlib.crc32(b"content")),)
    assert Path(target.folder, str(ATTEMPT), "0", "a.sst").read_bytes() == b"content"


def test_another_machine_and_another_folder_are_not_taken(tmp_path: Path) -> None:
    source, target = source_and_target(tmp_path)
    assert is_reachable_folder(source.machine, source.folder)
    assert not is_reachable_folder("", "")
    assert not is_reachable_folder(source.machine, str(tmp_path / "not there"))
    assert not is_reachable_folder(source.machine, str(tmp_path))
    elsewhere = f"{uuid.UUID(int=7)}.nonce"
    (tmp_path / elsewhere).touch()
    assert not is_reachable_folder(elsewhere, str(tmp_path))
    os.unlink(Path(target.folder, target.machine))
    assert not can_link(source, target)
