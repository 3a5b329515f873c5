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
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ebla import options
from ebla.control.group0.join_state import JoinStage, JoinState, JoinStateFile
from ebla.model.errors import EblaError, InvalidRequest, Refused
from ebla.options import NodeOptions
from ebla.ports.clock import Clock
from ebla.runtime import file_lock
from ebla.runtime.data_folder import DataFolder, FolderRefused, NodeIdentity, write_durably
from ebla.runtime.file_disk import FileDisk
from ebla.runtime.system_clock import SystemClock
from ebla.runtime.system_rng import SystemRng

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


def require_nodes(data: Path) -> list[LocalNode]:
    nodes = find_nodes(data)
    if not nodes:
        raise InvalidRequest(
            f"there are no nodes in {data}", advice="start some with `ebla up`, or name another --data"
        )
    return nodes


def load_node(path: Path) -> LocalNode:
    """The node of a folder, or of an options file elsewhere."""
    file = path / "options.toml" if path.is_dir() else path
    if not file.exists():
        raise InvalidRequest(f"{file} does not exist", advice="name the node's folder, or its options file")
    return _load(file.parent.name, file)


def find_or_create_nodes(data: Path, shape: NewClusterSpec) -> list[LocalNode]:
    nodes = find_nodes(data)
    if not nodes:
        return _make_nodes(data, shape)
    if _is_half_made(data, nodes):
        nodes = _complete_nodes(data, nodes[0])
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
            f"another `ebla up` or `ebla add-node` is running in {data}",
            advice="wait for it, then check with `ebla status`",
        ) from None


def check_nodes(nodes: Sequence[LocalNode]) -> None:
    """Reports everything that is wrong with any of the nodes before one is started. Nodes that run are not checked."""
    # Certificates need libraries that are slow to load, and most commands start no node.
    from ebla.runtime.preflight import check_addresses, check_folder

    clusters: dict[str, LocalNode] = {}
    stopped = [node for node in nodes if node.running_pid() is None]
    for node in nodes:
        identity = check_folder(node.options) if node in stopped else node.folder.read_identity()
        if identity is not None:
            clusters.setdefault(str(identity.cluster), node)
    if len(clusters) > 1:
        (one, first), (other, second) = list(clusters.items())[:2]
        raise FolderRefused(
            f"{first.folder.path} belongs to cluster {one} and {second.folder.path} to cluster {other}",
            advice="start each cluster from a folder of its own",
        )
    for node in stopped:
        check_addresses(node.options)


def assign_identities(nodes: Sequence[LocalNode]) -> list[NodeIdentity]:
    """For first starts. The first node founds the cluster; its certificate authority is copied to the others as files.
    The operator who starts them owns every folder, so no token is needed."""
    # Certificates need libraries that are slow to load, and most commands start no node.
    from ebla.runtime.bootstrap import create_cluster, join_from_folder

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


def start(node: LocalNode, overrides: Sequence[str] = ()) -> subprocess.Popen[bytes]:
    """Starts a process in a session of its own, so that no Ctrl-C or hang-up of a terminal reaches it. `overrides` are
    options of this start alone."""
    log = node.folder.log
    flags = [flag for override in overrides for flag in ("--set", override)]
    if log.exists() and log.stat().st_size > LOG_BYTES_MAX:
        log.rename(log.with_suffix(".log.1"))
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        return subprocess.Popen(  # noqa: S603  # the arguments are our own
            [sys.executable, "-m", "ebla.node", "control", "--options", str(node.options_path), *flags],
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


async def join_state(node: LocalNode) -> JoinState:
    """What it remembers of group 0."""
    return await JoinStateFile(FileDisk(), f"{node.folder.group0.absolute()}-mark").load()


async def has_left(node: LocalNode) -> bool:
    """Whether it knows that it has left its cluster: its host never returns."""
    try:
        return (await join_state(node)).stage is JoinStage.REMOVED
    except EblaError:
        return False  # its folder is damaged; the node says how


def left_text(node: LocalNode) -> str:
    """Of a node that has left: it never returns to its cluster."""
    return f"has left the cluster; it joins as a new node after: ebla reset-node {node.folder.path}"


def last_stop(node: LocalNode) -> str:
    """Why its process ended; empty: it did not say so."""
    try:
        return node.folder.last_stop.read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return ""


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
        _check_unused(folder)
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
        _write_options(folder, options.with_overrides(draft, shape.overrides, f"options of {folder.name}"))
    return find_nodes(data)


def _is_half_made(data: Path, nodes: Sequence[LocalNode]) -> bool:
    """Whether a first `ebla up` was killed while it wrote the options: no node has an identity yet, and the nodes know
    of further ones. They would wait for those forever."""
    first = nodes[0].options
    if (data / "options.toml").exists() or any(node.folder.identity.exists() for node in nodes):
        return False
    return len(nodes) < len(first.peers) and first.peers == _addresses(first.address, len(first.peers))


def _complete_nodes(data: Path, first: LocalNode) -> list[LocalNode]:
    """Options that are not written yet are those of the first node, with address and rack of their own."""
    for number, address in enumerate(first.options.peers, start=1):
        folder = data / f"node{number}"
        if not (folder / "options.toml").exists():
            rack = f"rack{number}" if first.options.rack == "rack1" else first.options.rack
            _write_options(folder, msgspec.structs.replace(first.options, address=address, rack=rack))
    return find_nodes(data)


def _check_unused(folder: Path) -> None:
    """What a killed `ebla up` leaves of a file that it was writing does not count."""
    if folder.exists() and any(path.name != ".options.toml.new" for path in folder.iterdir()):
        raise FolderRefused(
            f"{folder} is not empty and has no options.toml: it is not a node's folder",
            advice="name another folder with --data",
        )


def _write_options(folder: Path, chosen: NodeOptions) -> None:
    """Atomic, because `ebla status` reads it meanwhile; for the owner only, because it may hold a password's hash."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_durably(folder / "options.toml", options.render(msgspec.structs.replace(chosen, data=".")).encode())


@dataclass(frozen=True, slots=True, kw_only=True)
class AddedNodesSpec:
    """Describes nodes that are added to a local cluster. None: as its first node has it, and a rack of their own."""

    count: int
    datacenter: str | None = None
    rack: str | None = None
    shards: int | None = None
    overrides: Sequence[str] = ()


def add_nodes(data: Path, spec: AddedNodesSpec, taken: Collection[str]) -> list[LocalNode]:
    """Creates the folders and options of further nodes, and their identities. `taken`: addresses of the cluster's other
    nodes. Options that are not named are those of the first node: ports, logins and limits fit the cluster then."""
    nodes = find_nodes(data)
    if not nodes or (data / "options.toml").exists():
        raise InvalidRequest(f"{data} holds no cluster that `ebla up` made", advice="name its folder with --data")
    planned = plan_new_nodes(data, nodes, spec, taken)
    for folder, _ in planned:
        _check_unused(folder)
    for folder, chosen in planned:
        _write_options(folder, chosen)
    names = [folder.name for folder, _ in planned]
    made = [node for node in find_nodes(data) if node.name in names]
    try:
        check_nodes(made)
    except EblaError:
        for node in made:  # or the next `ebla up` would start them, or fail as this did
            node.options_path.unlink()
            node.folder.path.rmdir()
        raise
    assign_identities([*nodes, *made])
    return made


def plan_new_nodes(
    data: Path, nodes: Sequence[LocalNode], spec: AddedNodesSpec, taken: Collection[str]
) -> list[tuple[Path, NodeOptions]]:
    """The next numbers, and addresses at the same distance from those of the first node, without those in use."""
    first = nodes[0].options
    in_use = {*taken, *(node.options.address for node in nodes), *first.peers}
    numbers = [_number_of(node) for node in nodes]
    planned: list[tuple[Path, NodeOptions]] = []
    address = ipaddress.ip_address(first.address) + (max(numbers) - numbers[0])
    for number in range(max(numbers) + 1, max(numbers) + 1 + spec.count):
        address += 1
        while str(address) in in_use:
            address += 1
        draft = msgspec.structs.replace(
            first,
            address=str(address),
            peers=tuple(dict.fromkeys((*first.peers, *(node.options.address for node in nodes), str(address)))),
            datacenter=spec.datacenter or first.datacenter,
            rack=spec.rack or f"rack{number}",
            shards=first.shards if spec.shards is None else spec.shards,
        )
        chosen = options.with_overrides(draft, spec.overrides, f"options of node{number}")
        planned.append((data / f"node{number}", chosen))
    return planned


def _number_of(node: LocalNode) -> int:
    return int(node.name.removeprefix("node"))


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
    # Certificates need libraries that are slow to load, and most commands start no node.
    from ebla.runtime.tls import TlsFolder

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
