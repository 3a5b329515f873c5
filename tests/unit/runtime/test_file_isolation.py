"""Read leases on real files: whether any process still has one open for writing."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ebla.runtime import file_isolation
from ebla.runtime.file_isolation import FileIsolation
from ebla.runtime.machine_id import machine_id

HOLDER = """
import os, sys
held = os.open(sys.argv[1], int(sys.argv[2]))
print("open", flush=True)
sys.stdin.readline()
os.close(held)
print("closed", flush=True)
sys.stdin.readline()
"""
ISOLATION = FileIsolation()
linux_only = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has leases")


@contextmanager
def held_open(path: Path, flags: int) -> Iterator["subprocess.Popen[str]"]:
    """By another process, until it is signalled."""
    command = [sys.executable, "-c", HOLDER, str(path), str(flags)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            _wait_for(process, "open")
            yield process
        finally:
            process.kill()


def _wait_for(process: "subprocess.Popen[str]", word: str) -> None:
    assert process.stdout is not None
    assert process.stdout.readline() == f"{word}\n"


def _let_go(process: "subprocess.Popen[str]") -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()
    _wait_for(process, "closed")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "staged"
    path.write_bytes(b"staged")
    return path


@linux_only
def test_a_writer_in_another_process_is_seen_until_it_closes(file: Path) -> None:
    """INV-XFER-4."""
    assert ISOLATION.has_no_writer(str(file))
    with held_open(file, os.O_RDWR) as writer:
        assert not ISOLATION.has_no_writer(str(file))
        _let_go(writer)
        assert ISOLATION.has_no_writer(str(file))


@linux_only
def test_a_writer_is_seen_under_another_name_and_after_its_own_is_gone(file: Path, tmp_path: Path) -> None:
    taken = tmp_path / "taken"
    with held_open(file, os.O_WRONLY | os.O_APPEND):
        os.link(file, taken)
        file.unlink()
        assert not ISOLATION.has_no_writer(str(taken))


@linux_only
def test_readers_do_not_count(file: Path) -> None:
    with held_open(file, os.O_RDONLY), file.open("rb"):
        assert ISOLATION.has_no_writer(str(file))


@linux_only
def test_our_own_writing_counts(file: Path) -> None:
    with file.open("r+b"):
        assert not ISOLATION.has_no_writer(str(file))
    assert ISOLATION.has_no_writer(str(file))


@linux_only
def test_a_link_to_somewhere_else_is_not_followed(file: Path, tmp_path: Path) -> None:
    other = tmp_path / "symbolic"
    other.symlink_to(file)
    assert not ISOLATION.has_no_writer(str(other))
    assert ISOLATION.inode(str(other)) != ISOLATION.inode(str(file))


def test_where_the_kernel_cannot_tell_nothing_is_believed(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_isolation, "_LEASES", False)
    assert not ISOLATION.has_no_writer(str(file))


def test_links_have_one_inode(file: Path, tmp_path: Path) -> None:
    os.link(file, tmp_path / "other")
    assert ISOLATION.inode(str(file)) == ISOLATION.inode(str(tmp_path / "other")) == file.stat().st_ino
    assert ISOLATION.size_bytes(str(file)) == 6


def test_a_machine_is_the_same_for_all_its_processes() -> None:
    printed = subprocess.run(
        [sys.executable, "-c", "from ebla.runtime.machine_id import machine_id; print(machine_id())"],
        check=True,
        capture_output=True,
        text=True,
    )
    assert printed.stdout.strip() == machine_id()
    assert "." not in machine_id()
    assert "/" not in machine_id()
