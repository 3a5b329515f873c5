"""A node's folder: whose it is, which format it has, and whether a node may start in it.

Every check runs before anything is started, and every refusal says what is wrong and how to fix it.
"""

import os
import shutil
import stat
from pathlib import Path

import msgspec

from ebla.model.advice import replace_node_advice
from ebla.model.errors import Corruption, DiskFull, Refused
from ebla.model.identity import ClusterId, HostId
from ebla.version import DATA_FORMAT

SHARDS_MAX = 256
SOCKET_PATH_BYTES_MAX = 100
"""The kernel allows 107; the rest is for the names of temporary sockets."""


class FolderRefused(Refused):
    """The folder cannot be used as it is; nothing in it was changed."""


class NodeIdentity(msgspec.Struct, frozen=True):
    """Who the node is, for ever. Stored as JSON for people to read."""

    host: HostId
    cluster: ClusterId
    cluster_name: str


class DataFolder:
    """The paths in `<data>`. Constructing it touches nothing."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.format = path / "FORMAT"
        self.identity = path / "identity"
        self.tls = path / "tls"
        self.group0 = path / "group0"
        self.settings = path / "settings"
        self.run = path / "run"
        self.control_socket = self.run / "control.sock"
        self.control_lock = self.run / "control.lock"
        self.bulk_socket = self.run / "bulk.sock"
        self.bulk_lock = self.run / "bulk.lock"
        self.pipeline_socket = self.run / "pipeline.sock"
        self.pipeline_lock = self.run / "pipeline.lock"
        # On the file system of the shards' folders: sealed and checkpointed files are hard-linked.
        self.staging = path / "staging"
        self.checkpoints = path / "checkpoints"
        # Spark's local folders and its log. Nothing in it is kept when the process ends.
        self.pipeline = path / "pipeline"
        self.log = self.run / "node.log"
        self.last_stop = self.run / "last-stop"

    def shard(self, number: int) -> Path:
        """What the shard stores: its log, its manifest, its layers."""
        return self.path / f"shard-{number}"

    def shard_lock(self, number: int) -> Path:
        return self.run / f"shard-{number}.lock"

    def shard_socket(self, number: int) -> Path:
        """Where the other processes of the node reach it."""
        return self.run / f"shard-{number}.sock"

    def shard_passing_socket(self, number: int) -> Path:
        """Where it receives client connections that another shard accepted."""
        return self.run / f"shard-{number}.cql"

    def child_locks(self) -> list[Path]:
        """Of every process that a control process has started here, in this run or an earlier one."""
        return sorted(path for path in self.run.glob("*.lock") if path != self.control_lock)

    def read_identity(self) -> NodeIdentity | None:
        """None: no node has started in this folder yet."""
        self._check_format()
        if not self.identity.exists():
            return None
        try:
            return msgspec.json.decode(self.identity.read_bytes(), type=NodeIdentity)
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
            # Never treated as a new folder: a second identity over old data would split a node in two.
            raise Corruption(
                f"{self.identity} cannot be read: {error}",
                advice=f"it never changes, so it alone may be restored from a copy; else {replace_node_advice()}",
            ) from error

    def lay_out(self) -> None:
        """Makes the folder, or completes one that was interrupted."""
        for folder in (self.path, self.tls, self.run):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not self.format.exists():
            write_durably(self.format, f"{DATA_FORMAT}\n".encode())

    def store_identity(self, identity: NodeIdentity) -> None:
        """The last step of a first start: a folder with an identity is complete."""
        assert self.format.exists()
        write_durably(self.identity, msgspec.json.format(msgspec.json.encode(identity)) + b"\n")

    def remove_content(self) -> None:
        """Removes what a node has stored here: all but options, identity, certificates and `run`. The caller holds the
        lock of control, and gives the folder a new identity afterwards: until then the node is refused under its old
        one, and the removal is repeated."""
        for path in sorted(self.path.iterdir()):
            if path.name not in ("options.toml", self.format.name, self.identity.name, self.tls.name, self.run.name):
                _remove(path)
        self.last_stop.unlink(missing_ok=True)
        _sync_folder(self.path)

    def check(self, free_bytes_min: int) -> NodeIdentity | None:
        """Checks everything that can be checked without starting anything. Returns `read_identity`."""
        if self.path.exists():
            self._check_access()
        identity = self.read_identity()
        if identity is None:
            self._check_empty()
        self._check_space(free_bytes_min)
        longest = self.shard_socket(SHARDS_MAX - 1)
        if len(os.fsencode(longest)) > SOCKET_PATH_BYTES_MAX:
            raise FolderRefused(
                f"the path {longest} is too long for a Unix socket",
                advice=f"choose a data folder whose path leaves it at most {SOCKET_PATH_BYTES_MAX} bytes",
            )
        return identity

    def _check_access(self) -> None:
        if not self.path.is_dir():
            raise FolderRefused(f"{self.path} is not a folder", advice="name another with --data or the key `data`")
        for path in (self.path, self.identity, self.tls, self.run):
            if path.exists():
                _check_private(path)
        if not os.access(self.path, os.R_OK | os.W_OK | os.X_OK):
            raise FolderRefused(f"{self.path} is not writable for this user", advice="run as the user who owns it")

    def _check_format(self) -> None:
        try:
            text = self.format.read_text(encoding="ascii").strip()
        except FileNotFoundError:
            return
        except (OSError, UnicodeDecodeError) as error:
            raise Corruption(f"{self.format} cannot be read: {error}") from error
        if not text.isdigit():
            raise Corruption(f"{self.format} holds {text[:40]!r} instead of a number")
        if int(text) > DATA_FORMAT:
            raise FolderRefused(
                f"{self.path} has format {text}; this version of Ebla knows formats up to {DATA_FORMAT}",
                advice="start it with the newer version that wrote it",
            )

    def _check_empty(self) -> None:
        if self.format.exists() or not self.path.is_dir():
            return
        foreign = sorted(set(os.listdir(self.path)) - {"options.toml"})
        if foreign:
            raise FolderRefused(
                f"{self.path} holds {foreign[0]!r} and no FORMAT: it is not a folder of Ebla",
                advice="name an empty or new folder",
            )

    def _check_space(self, free_bytes_min: int) -> None:
        there = next(path for path in (self.path, *self.path.parents) if path.exists())
        free = shutil.disk_usage(there).free
        if free < free_bytes_min:
            raise DiskFull(
                f"{self.path} has {free >> 20} MiB free and needs {free_bytes_min >> 20} MiB",
                advice="free some space, or lower limits.free_disk_bytes_min",
            )


def write_durably(path: Path, data: bytes) -> None:
    """Atomic and durable: new file, sync, rename, sync of the folder."""
    temporary = path.with_name(f".{path.name}.new")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, data)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    temporary.rename(path)
    _sync_folder(path.parent)


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove(path: Path) -> None:
    """A shard's folder may be a link to another disk, or a mount point: it is emptied and kept."""
    if not path.is_dir():
        path.unlink()
        return
    for inner in path.iterdir():
        if inner.is_dir() and not inner.is_symlink():
            shutil.rmtree(inner)
        else:
            inner.unlink()
    if not path.is_symlink() and not path.is_mount():
        path.rmdir()


def _check_private(path: Path) -> None:
    status = path.stat()
    if status.st_uid != os.geteuid():
        raise FolderRefused(
            f"{path} belongs to user {status.st_uid} and this process runs as user {os.geteuid()}",
            advice="run as the user who owns it",
        )
    if stat.S_IMODE(status.st_mode) & 0o077:
        raise FolderRefused(
            f"{path} is open to other users (mode {stat.S_IMODE(status.st_mode):o}); it holds keys",
            advice=f"chmod {'700' if path.is_dir() else '600'} {path}",
        )
