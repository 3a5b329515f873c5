"""Certificates of running nodes are renewed without a restart."""

import functools
import ssl
from collections.abc import Callable
from pathlib import Path

from tests.cluster.conftest import LocalNodes, eventually

from ebla.cli.cluster.local_cluster import RenewedCertificate, renew_certificates
from ebla.runtime.system_clock import SystemClock


def shown_certificate(nodes: LocalNodes, number: int) -> str:
    """The certificate that a new connection gets from the node."""
    address = nodes.nodes[number].options.control_address
    return ssl.get_server_certificate((address.host, address.port))


def shows(nodes: LocalNodes, number: int, certificate: list[str]) -> bool:
    return shown_certificate(nodes, number).split() == certificate


def test_running_nodes_take_new_certificates_and_stay_up(make_nodes: Callable[..., LocalNodes]) -> None:
    nodes = make_nodes(2)
    nodes.start_all()
    before = [shown_certificate(nodes, number) for number in range(2)]
    pids = [nodes.nodes[number].running_pid() for number in range(2)]
    renewed = renew_certificates(nodes.nodes, SystemClock())
    assert renewed == [RenewedCertificate(node.name, pid) for node, pid in zip(nodes.nodes, pids)]
    for number in range(2):
        kept = Path(nodes.nodes[number].folder.tls / "node.pem").read_text().split()
        assert kept != before[number].split()
        eventually(functools.partial(shows, nodes, number, kept), "the new certificate is shown")
    nodes.wait_all_up()
    assert [nodes.nodes[number].running_pid() for number in range(2)] == pids
