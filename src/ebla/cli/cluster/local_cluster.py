"""The nodes of a cluster on this machine: a folder with one folder per node, `node1`, `node2`, and so on.

Each has its options file, written at the first start and kept afterwards for people to edit. The nodes are processes
of their own that outlive the command that started them. A node's lock shows whether it runs.
"""

import ipaddress
import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ebla import options
from ebla.model.errors import InvalidRequest, Refused
from ebla.options import NodeOptions
from ebla.ports.clock import Clock
from ebla.runtime import file_lock
from ebla.runtime.bootstrap import create_cluster, join_from_folder
from ebla.runtime.data_folder import DataFolder, FolderRefused, NodeIdentity, write_durably
from ebla.runtime.preflight import check_addresses, check_folder
from ebla.runtime.system_clock import SystemClock
from ebla.runtime.system_rng import SystemRng
from ebla.runtime.tls import TlsFolder

NODES_DEFAULT = 3
NODES_MAX = 250
SHARDS_DEFAULT = 2
LOG_BYTES_MAX = 16 << 20
LOG_TAIL_LINES = 12


@dataclass(frozen=True, slots=True)
class LocalNode:
    name: str
    options_path: Path
    options: NodeOptions

    @property
    def folder(self) -> DataFolder:
        return DataFolder(self.options.folder)

    def running_pid(self) -> int | None:
        """The pid of its control process; None if it does not run."""
        held = file_lock.find_lock_holder(self.folder.control_lock)
        return None if held is None else held.holder

    def is_gone(self) -> bool:
        """Whether neither the control process nor any of its children is alive."""
        return file_lock.find_held_lock(self.folder.run) is None


@dataclass(frozen=True, slots=True, kw_only=True)
class NewClusterSpec:
    """Describes a new cluster. For an existing one only `nodes` matters: it must match or be None."""

    nodes: int | None
    shards: int
    base_address: str
    cluster_name: str
    overrides: Sequence[str] = ()


def find_nodes(data: Path) -> list[LocalNode]:
    """The nodes of a folder, by number. The folder of a single node is accepted too."""
    if (data / "options.toml").exists():
        return [_load(data.name, data / "options.toml")]
    if not data.is_dir():
        return []
    numbered = [(int(match[1]), path) for path in data.iterdir() if (match := re.fullmatch(r"node(\d+)", path.name))]
    return [_load(path.name, path / "options.toml") for _, path in sorted(numbered) if (path / "options.toml").exists()]


def find_or_create_nodes(data: Path, shape: NewClusterSpec) -> list[LocalNode]:
    nodes = find_nodes(data)
    if not nodes:
        return _make_nodes(data, shape)
    if shape.nodes is not None and shape.nodes != len(nodes):
        raise InvalidRequest(
            f"{data} holds a cluster of {len(nodes)} nodes, and {shape.nodes} were requested",
            advice="leave out --nodes to start it as it is, or name another folder with --data",
        )
    return nodes


def lock_data_folder(data: Path) -> file_lock.FileLock:
    """Hold it from the first check until all nodes are up. Two concurrent `ebla up` would give each node two
    identities, and the one that finds the other's nodes running would stop them as a failed start of its own."""
    try:
        return file_lock.acquire_folder(data)
    except file_lock.LockHeld:
        raise Refused(
            f"another `ebla up` is running in {data}", advice="wait for it, then check with `ebla status`"
        ) from None


def check_nodes(nodes: Sequence[LocalNode]) -> None:
    """Reports everything that is wrong with any of the nodes before one is started."""
    clusters: dict[str, LocalNode] = {}
    for node in nodes:
        identity = check_folder(node.options)
        if identity is not None:
            clusters.setdefault(str(identity.cluster), node)
    if len(clusters) > 1:
        (one, first), (other, second) = list(clusters.items())[:2]
        raise FolderRefused(
            f"{first.folder.path} belongs to cluster {one} and {second.folder.path} to cluster {other}",
            advice="start each cluster from a folder of its own",
        )
    for node in nodes:
        check_addresses(node.options)


def assign_identities(nodes: Sequence[LocalNode]) -> list[NodeIdentity]:
    """For first starts. The first node founds the cluster; its certificate authority is copied to the others as files.
    The operator who starts them owns every folder, so no token is needed."""
    clock, rng = SystemClock(), SystemRng()
    identities = [node.folder.read_identity() for node in nodes]
    settled: list[NodeIdentity] = []
    member = next((node for node, identity in zip(nodes, identities) if identity is not None), None)
    for node, identity in zip(nodes, identities):
        if identity is None and member is None:
            identity = create_cluster(node.options, clock, rng)
        elif identity is None and member is not None:
            identity = join_from_folder(node.options, member.folder, clock, rng)
        assert identity is not None
        member = member or node
        settled.append(identity)
    return settled


def start(node: LocalNode) -> subprocess.Popen[bytes]:
    """Starts a process in a session of its own, so that no Ctrl-C or hang-up of a terminal reaches it."""
    log = node.folder.log
    if log.exists() and log.stat().st_size > LOG_BYTES_MAX:
        log.rename(log.with_suffix(".log.1"))
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        return subprocess.Popen(  # noqa: S603  # the arguments are our own
            [sys.executable, "-m", "ebla.node", "control", "--options", str(node.options_path)],
            stdin=subprocess.DEVNULL,
            stdout=descriptor,
            stderr=descriptor,
            start_new_session=True,
        )
    finally:
        os.close(descriptor)


def end(node: LocalNode, number: signal.Signals) -> None:
    """Signals the control process of a node, if it runs."""
    pid = node.running_pid()
    if pid is not None:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass  # it has just ended


def log_tail(node: LocalNode) -> str:
    """The end of a node's log, for an error message."""
    try:
        lines = node.folder.log.read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return ""
    return "\n".join(f"    {line}" for line in lines[-LOG_TAIL_LINES:])


def _load(name: str, path: Path) -> LocalNode:
    return LocalNode(name, path.resolve(), options.load(path))


def _make_nodes(data: Path, shape: NewClusterSpec) -> list[LocalNode]:
    count = NODES_DEFAULT if shape.nodes is None else shape.nodes
    if not 1 <= count <= NODES_MAX:
        raise InvalidRequest(f"{count} nodes were requested; allowed are 1 to {NODES_MAX}")
    addresses = _addresses(shape.base_address, count)
    if data.exists() and not data.is_dir():
        raise FolderRefused(f"{data} is no folder", advice="name another with --data")
    drafts = [(data / f"node{number}", address) for number, address in enumerate(addresses, start=1)]
    for folder, _ in drafts:
        if folder.exists() and any(folder.iterdir()):
            raise FolderRefused(
                f"{folder} is not empty and has no options.toml: it is not a node's folder",
                advice="name another folder with --data",
            )
    for number, (folder, address) in enumerate(drafts, 1):
        # Nodes of one machine fail together, but a trial cluster should have racks like a real one.
        draft = NodeOptions(
            data=".",
            address=address,
            cluster_name=shape.cluster_name,
            peers=addresses,
            rack=f"rack{number}",
            shards=shape.shards,
        )
        chosen = options.with_overrides(draft, shape.overrides, f"options of {folder.name}")
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Atomic, because `ebla status` reads it meanwhile; for the owner only, because it may hold a password's hash.
        write_durably(folder / "options.toml", options.render(msgspec.structs.replace(chosen, data=".")).encode())
    return find_nodes(data)


def _addresses(base: str, count: int) -> tuple[str, ...]:
    try:
        first = ipaddress.ip_address(base)
        return tuple(str(first + number) for number in range(count))
    except ValueError as error:
        raise InvalidRequest(f"--base-address {base!r} is no IP address: {error}") from error


@dataclass(frozen=True, slots=True)
class RenewedCertificate:
    name: str
    signalled_pid: int | None
    """The process that was signalled to reload its certificates; None if the node does not run."""


def renew_certificates(nodes: Sequence[LocalNode], clock: Clock) -> list[RenewedCertificate]:
    """Skips nodes that were never started: they have no certificate."""
    renewed = []
    for node in nodes:
        identity = node.folder.read_identity()
        if identity is None:
            continue
        TlsFolder(node.folder.tls).renew(identity, clock)
        pid = node.running_pid()
        if pid is not None:
            os.kill(pid, signal.SIGHUP)
        renewed.append(RenewedCertificate(node.name, pid))
    return renewed
