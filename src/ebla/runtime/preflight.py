"""Checks before a node starts anything: folder, cluster, addresses, sockets."""

import errno
import socket
import stat
import time
import tomllib
from pathlib import Path

from ebla.cql.authentication import parse_password_hash
from ebla.model.errors import Refused
from ebla.model.identity import Address
from ebla.options import NodeOptions
from ebla.runtime import file_lock
from ebla.runtime.data_folder import DataFolder, FolderRefused, NodeIdentity
from ebla.runtime.tls import TlsFolder

LOCK_POLL_S = 0.05


class AddressTaken(Refused):
    """The node cannot listen where its options say."""


def check_credentials(options: NodeOptions, path: Path) -> None:
    """The hash of the password, if there is one: it is one that a login can be checked with, and only the owner can
    read the options file. From the hash of a weak password the password can be guessed."""
    if not options.superuser_password_hash:
        return
    parse_password_hash(options.superuser_password_hash)
    holds_hash = bool(tomllib.loads(path.read_text(encoding="utf-8")).get("superuser_password_hash"))
    mode = stat.S_IMODE(path.stat().st_mode)
    if holds_hash and mode & 0o077:
        raise Refused(
            f"{path} holds `superuser_password_hash`, and others than its owner may read it (mode {mode:o})",
            advice=f"chmod 600 {path}",
        )


def check_folder(options: NodeOptions) -> NodeIdentity | None:
    """Raises errors for the operator. Returns the node's identity, None before its first start."""
    folder = DataFolder(options.folder)
    identity = folder.check(options.limits.free_disk_bytes_min)
    if identity is not None and identity.cluster_name != options.cluster_name:
        raise FolderRefused(
            f"{folder.path} belongs to cluster {identity.cluster_name!r}, the options name {options.cluster_name!r}",
            advice="name the folder's cluster, or another folder",
        )
    if identity is not None:
        TlsFolder(folder.tls).check_owner_only()
    held = file_lock.find_lock_holder(folder.control_lock)
    if held is not None:
        raise FolderRefused(
            f"a node already runs in {folder.path} (process {held.holder})",
            advice="stop it first (`ebla down`), or look at it (`ebla status`)",
        )
    return identity


def wait_for_predecessors(folder: DataFolder, wait_ms: int) -> None:
    """A child of a dead control process may outlive it by a moment, and still write. Nothing starts before all their
    locks are free. No other control process can start children meanwhile, since this one holds its own lock."""
    deadline = time.monotonic() + wait_ms / 1000
    while (held := _held_by_child(folder)) is not None:
        if time.monotonic() >= deadline:
            raise Refused(
                f"a process of an earlier run of this node is still alive after {wait_ms} ms: {held.message}",
                advice=f"end it (kill -9 {held.holder}) and start the node again",
            )
        time.sleep(LOCK_POLL_S)


def _held_by_child(folder: DataFolder) -> file_lock.LockHeld | None:
    held = (file_lock.find_lock_holder(path) for path in folder.child_locks())
    return next((one for one in held if one is not None), None)


def check_addresses(options: NodeOptions) -> None:
    """Every address the node will listen on."""
    shards = [options.shard_address(number) for number in range(options.shards)]
    single = (options.control_address, options.flight_address, options.bulk_address, *options.cql_addresses)
    for address in (*single, *shards):
        check_address(address)


def check_address(address: Address) -> None:
    """Listens for a moment. Without SO_REUSEPORT, so that it also conflicts with a listener that sets it."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address.host, address.port))
            probe.listen(1)
        except OSError as error:
            raise AddressTaken(
                f"cannot listen on {address}: {error.strerror}", advice=_advice(error, address)
            ) from error


def _advice(error: OSError, address: Address) -> str:
    if error.errno == errno.EADDRINUSE:
        return "another process listens there; stop it, or change `address` or [ports] in the options"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"{address.host} is not an address of this machine (macOS: sudo ifconfig lo0 alias {address.host})"
    if error.errno == errno.EACCES:
        return "ports below 1024 need privileges; choose others in [ports]"
    return "choose another `address` in the options"
