"""A file system of its own for one node, small enough to be filled."""

import errno
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ebla.cli.cluster.local_cluster import LocalNode


@contextmanager
def small_disk(folder: Path, size_bytes: int) -> Iterator[bool]:
    """Mounts it there, which only root may do; False if it could not."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "none", str(folder)]
    is_mounted = os.geteuid() == 0 and subprocess.run(command, capture_output=True, check=False).returncode == 0
    try:
        yield is_mounted
    finally:
        if is_mounted:
            subprocess.run(["umount", "-l", str(folder)], check=True)


def move_to(node: LocalNode, disk: Path) -> None:
    """Takes a node that was not started yet."""
    own, folder = node.options.folder, disk / "node"
    shutil.copytree(own, folder)
    shutil.rmtree(own)
    own.symlink_to(folder)
    # What the test itself reads of a node must not be lost when the disk is full.
    (folder / "run" / "test-output").symlink_to(disk.with_name(f"output-of-{disk.name}"))


def fill(path: Path) -> None:
    """Fills the disk to the last byte. Unbuffered: a buffer would be written again on close, and fail."""
    with path.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"\0" * (1 << 16))
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
