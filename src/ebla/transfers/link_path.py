"""The link path: copies files by hard links if source, target and task are on one machine and can open the folders.

A link has the source's inode, so nothing is read: the bytes are the same because the file is the same. What a task does
here is not trusted: the seal checks every file.
"""

import errno
import os
import zlib
from pathlib import Path

from ebla.model.identity import AttemptId
from ebla.model.transfers import CheckpointFile, CheckpointPart, MoveResult, StagedFile, TransferSource, TransferTarget

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
COPY_BYTES = 4 << 20

NOT_LINKABLE = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP)
"""Another file system, one without links, or a kernel that allows links only to own files."""


def is_same_machine(machine: str) -> bool:
    """Whether a process runs on this machine, perhaps in another container. The boot id distinguishes it from another
    machine that mounts the same disk."""
    if not machine or not _BOOT_ID.exists():
        return False
    return machine.partition(".")[0] == _BOOT_ID.read_text(encoding="ascii").strip()


def is_reachable_folder(machine: str, folder: str) -> bool:
    """Whether an offered folder can be opened here. A file named after the machine distinguishes it from a folder that
    only has the same path, in another container."""
    if not folder or not is_same_machine(machine):
        return False
    path = Path(folder)
    try:
        return (path / machine).is_file() and os.access(path, os.R_OK | os.X_OK)
    except OSError:
        return False


def can_link(source: TransferSource, target: TransferTarget) -> bool:
    return (
        is_reachable_folder(source.machine, source.folder)
        and is_reachable_folder(target.machine, target.folder)
        and os.access(target.folder, os.W_OK)
    )


def link_files(source: TransferSource, part: CheckpointPart, target: TransferTarget, attempt: AttemptId) -> MoveResult:
    """Raises `OSError`; then what was linked is removed with its session."""
    own = Path(target.folder, str(attempt))
    own.mkdir(mode=0o700)
    staged = []
    for number, layer in enumerate(part.layers):
        folder = own / str(number)
        folder.mkdir(mode=0o700)
        for file in layer.files:
            origin = Path(source.folder, layer.folder, file.name)
            staged.append(_link_or_copy(origin, folder / file.name, f"{number}/{file.name}", file))
    size = sum(file.size_bytes for file in staged)
    return MoveResult(transfer=target.transfer, attempt=attempt, files=tuple(staged), size_bytes=size, short_cut=True)


def _link_or_copy(origin: Path, to: Path, name: str, file: CheckpointFile) -> StagedFile:
    try:
        os.link(origin, to)
    except OSError as error:
        if error.errno not in NOT_LINKABLE:
            raise
        size_bytes, checksum = _copy(origin, to)
        return StagedFile(name=name, size_bytes=size_bytes, checksum=checksum)
    return StagedFile(name=name, size_bytes=file.size_bytes, inode=os.stat(to).st_ino)


def _copy(origin: Path, to: Path) -> tuple[int, int]:
    """Size and checksum."""
    size, checksum = 0, 0
    with origin.open("rb") as reading, to.open("xb") as writing:
        while piece := reading.read(COPY_BYTES):
            writing.write(piece)
            size += len(piece)
            checksum = zlib.crc32(piece, checksum)
    return size, checksum
