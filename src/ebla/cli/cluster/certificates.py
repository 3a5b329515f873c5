"""New certificates for the nodes of a folder, taken up by running nodes without a restart."""

import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass

from ebla.cli.cluster.local_cluster import LocalNode
from ebla.ports.clock import Clock
from ebla.runtime.tls import TlsFolder, TlsIdentity


@dataclass(frozen=True, slots=True)
class RenewedCertificate:
    name: str
    signalled_pid: int | None
    """The running node that was told to read its certificates anew; None where none runs."""


def renew_certificates(nodes: Sequence[LocalNode], clock: Clock) -> list[RenewedCertificate]:
    """Nodes that were never started have nothing to renew and are left out."""
    renewed = []
    for node in nodes:
        identity = node.folder.read_identity()
        if identity is None:
            continue
        owner = TlsIdentity(identity.host, identity.cluster, identity.cluster_name)
        TlsFolder(node.folder.tls).renew(owner, clock)
        pid = node.running_pid()
        if pid is not None:
            os.kill(pid, signal.SIGHUP)
        renewed.append(RenewedCertificate(node.name, pid))
    return renewed
