"""The node's folder: identities that survive, and refusals that say what to do."""

import os
import uuid
from pathlib import Path

import pytest

from ebla.model.errors import Corruption, DiskFull
from ebla.model.identity import ClusterId, HostId
from ebla.runtime.data_folder import DataFolder, FolderRefused, NodeIdentity

IDENTITY = NodeIdentity(HostId(uuid.UUID(int=1)), ClusterId(uuid.UUID(int=2)), "ebla")


def made(path: Path) -> DataFolder:
    folder = DataFolder(path)
    folder.lay_out()
    folder.store_identity(IDENTITY)
    return folder


def test_an_identity_survives_and_is_readable_by_people(tmp_path: Path) -> None:
    folder = made(tmp_path / "n")
    assert DataFolder(tmp_path / "n").check(0) == IDENTITY
    assert f'"host": "{uuid.UUID(int=1)}"' in folder.identity.read_text()
    assert folder.format.read_text() == "2\n"
    for path in (folder.path, folder.tls, folder.run, folder.identity):
        assert path.stat().st_mode & 0o077 == 0


def test_a_missing_and_an_empty_folder_and_one_with_options_alone_are_fresh(tmp_path: Path) -> None:
    assert DataFolder(tmp_path / "n").check(0) is None
    (tmp_path / "n").mkdir(mode=0o700)
    assert DataFolder(tmp_path / "n").check(0) is None
    (tmp_path / "n" / "options.toml").touch()
    assert DataFolder(tmp_path / "n").check(0) is None


def test_a_creation_that_was_interrupted_is_completed(tmp_path: Path) -> None:
    folder = made(tmp_path / "n")
    folder.identity.unlink()
    assert folder.check(0) is None
    folder.lay_out()
    folder.store_identity(IDENTITY)
    assert folder.check(0) == IDENTITY


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    folder = made(tmp_path / "n")
    folder.format.write_text("3\n")
    with pytest.raises(FolderRefused, match=r"has format 3; this version of Ebla knows formats up to 2; start it with"):
        folder.check(0)


@pytest.mark.parametrize("content", [b"", b"{}", b'{"host": 3}', b"\xff\xff"])
def test_an_unreadable_identity_is_corruption_and_never_a_fresh_folder(tmp_path: Path, content: bytes) -> None:
    folder = made(tmp_path / "n")
    folder.identity.write_bytes(content)
    with pytest.raises(Corruption, match="identity cannot be read"):
        folder.check(0)


def test_an_unreadable_format_is_corruption(tmp_path: Path) -> None:
    folder = made(tmp_path / "n")
    folder.format.write_bytes(b"one")
    with pytest.raises(Corruption, match="holds 'one' instead of a number"):
        folder.check(0)


@pytest.mark.parametrize("bit", [0o040, 0o004])
@pytest.mark.parametrize("part", ["path", "identity", "tls", "run"])
def test_what_others_can_read_is_refused_with_the_command_that_mends_it(tmp_path: Path, part: str, bit: int) -> None:
    folder = made(tmp_path / "n")
    path: Path = getattr(folder, part)
    path.chmod(path.stat().st_mode | bit)
    with pytest.raises(FolderRefused, match=r"is open to other users .*; chmod [67]00 ") as caught:
        folder.check(0)
    os.chmod(path, int(caught.value.advice.split()[1], 8))
    assert folder.check(0) == IDENTITY


def test_a_folder_of_something_else_and_a_file_are_refused(tmp_path: Path) -> None:
    (tmp_path / "n").mkdir(mode=0o700)
    (tmp_path / "n" / "photo.jpg").touch()
    with pytest.raises(FolderRefused, match=r"holds 'photo.jpg' and no FORMAT"):
        DataFolder(tmp_path / "n").check(0)
    with pytest.raises(FolderRefused, match="is not a folder"):
        DataFolder(tmp_path / "n" / "photo.jpg").check(0)


def test_too_little_space_is_told_with_both_figures(tmp_path: Path) -> None:
    with pytest.raises(DiskFull, match=r"has \d+ MiB free and needs 1073741824 MiB"):
        DataFolder(tmp_path / "n").check(1 << 50)


def test_a_path_too_long_for_a_socket_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FolderRefused, match="too long for a Unix socket"):
        DataFolder(tmp_path / ("x" * 100)).check(0)
