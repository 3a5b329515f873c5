"""Certificates: made once, owner only, refused where they do not fit, renewed without restart, handed over at join."""

import asyncio
import ssl
import stat
import uuid
from pathlib import Path

import pytest
from tests.async_tests import real_time, runs_in
from tests.unit.runtime.tls_rig import (
    CLUSTER,
    NAME,
    Cluster,
    Reports,
    Served,
    calling,
    free_address,
    host,
    identity,
    introduction,
    serving,
)
from tests.unit.wire.rig import ECHO, EchoAnswer, EchoRequest

from ebla.model.errors import Corruption, InvalidRequest, Refused, Unreachable
from ebla.model.identity import ClusterId
from ebla.options import NodeOptions
from ebla.runtime.authority_handover import AuthorityService, fetch_authority, new_join_token
from ebla.runtime.bootstrap import create_cluster
from ebla.runtime.system_clock import SystemClock
from ebla.runtime.system_rng import SystemRng
from ebla.runtime.tcp_transport import TcpTransport, TlsContexts
from ebla.runtime.tls import (
    Authority,
    JoiningNodeTls,
    NodeTls,
    TlsFolder,
    check_authority,
    host_in_peer_certificate,
)
from ebla.wire.frames import Introduction
from ebla.wire.join_token import JoinToken
from ebla.wire.server import Server

pytestmark = runs_in(real_time)


def test_first_start_makes_files_of_the_owner_alone_also_after_an_interrupted_one(tmp_path: Path) -> None:
    """Interrupted: the keys were written, the certificates and the identity were not."""
    options = NodeOptions(data=str(tmp_path / "data"))
    folder = TlsFolder(tmp_path / "data" / "tls")
    for _ in range(2):
        create_cluster(options, SystemClock(), SystemRng())
        assert sorted(path.name for path in folder.path.iterdir()) == [
            "authority.key",
            "authority.pem",
            "node.key",
            "node.pem",
        ]
        assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700
        assert {stat.S_IMODE(path.stat().st_mode) for path in folder.path.iterdir()} == {0o600}
        check_authority(folder.authority())
        NodeTls(folder)
        for path in (folder.path / "authority.pem", folder.path / "node.pem", tmp_path / "data" / "identity"):
            path.unlink()


def test_keys_that_others_can_read_are_refused(tmp_path: Path) -> None:
    folder = Cluster(tmp_path).folder(1)
    (folder.path / "node.key").chmod(0o640)
    with pytest.raises(InvalidRequest, match="readable by others"):
        NodeTls(folder)
    (folder.path / "node.key").chmod(0o600)
    folder.path.chmod(0o755)
    with pytest.raises(InvalidRequest, match="open to others"):
        NodeTls(folder)


def test_missing_and_broken_files_are_told(tmp_path: Path) -> None:
    folder = Cluster(tmp_path).folder(1)
    (folder.path / "node.pem").write_bytes(b"clay")
    with pytest.raises(Corruption, match="cannot be used") as broken:
        NodeTls(folder)
    assert "ebla renew" in str(broken.value)
    (folder.path / "authority.pem").unlink()
    with pytest.raises(Corruption, match="is missing"):
        NodeTls(folder)


def test_a_renewal_that_was_interrupted_is_told_and_done_again(tmp_path: Path) -> None:
    folder = Cluster(tmp_path).folder(1)
    before = (folder.path / "node.pem").read_bytes()
    folder.renew(identity(1), SystemClock())
    (folder.path / "node.pem").write_bytes(before)
    with pytest.raises(Corruption, match="ebla renew"):
        NodeTls(folder)
    folder.renew(identity(1), SystemClock())
    NodeTls(folder)


def test_a_key_of_another_authority_is_refused(tmp_path: Path) -> None:
    one, other = Cluster(tmp_path / "a"), Cluster(tmp_path / "b")
    with pytest.raises(InvalidRequest, match="does not belong"):
        check_authority(Authority(one.authority.certificate_pem, other.authority.key_pem))
    with pytest.raises(InvalidRequest, match="not a certificate authority"):
        check_authority(Authority(b"clay", one.authority.key_pem))


@pytest.mark.parametrize(
    "peer",
    [None, {}, {"subjectAltName": (("DNS", "x"),)}, {"subjectAltName": (("URI", "ebla:host:not-a-uuid"),)}],
)
def test_certificates_without_a_host_name_nobody(peer: dict[str, tuple[tuple[str, str], ...]] | None) -> None:
    assert host_in_peer_certificate(peer) is None


async def test_nodes_of_one_cluster_know_each_other(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    async with serving(cluster.tls(1)) as served:
        async with calling(cluster.tls(2), served, expect=host(1)) as (caller, _):
            assert await caller.call(ECHO, EchoRequest("clay"), 5000) == EchoAnswer("clay")
        assert served.reports.events == []


async def refused(client: TlsContexts, served: Served, number: int = 2) -> tuple[str, Reports]:
    """Fails to connect. Returns the client's error, and what the server reported."""
    with pytest.raises(Unreachable) as caught:
        async with calling(client, served, number=number, expect=host(1)):
            pass
    async with asyncio.timeout(60):
        await served.reports.wait_for_report()
    return str(caught.value), served.reports


async def test_a_foreign_certificate_is_refused_by_both(tmp_path: Path) -> None:
    ours, theirs = Cluster(tmp_path / "ours"), Cluster(tmp_path / "theirs")
    async with serving(ours.tls(1)) as served:
        message, reports = await refused(theirs.tls(2), served)
        assert "certificate" in message
        assert "transport.tls_failed" in reports.text()
        async with calling(ours.tls(3), served, number=3) as (caller, _):
            assert await caller.call(ECHO, EchoRequest("still"), 5000) == EchoAnswer("still")


class Trusting:
    """A foreign client that believes any server: the server's own check must hold."""

    def __init__(self, tls: NodeTls) -> None:
        self._tls = tls

    def server_context(self, *, certificate_optional: bool) -> ssl.SSLContext:
        return self._tls.server_context(certificate_optional=certificate_optional)

    def client_context(self) -> ssl.SSLContext:
        context = self._tls.client_context()
        context.verify_mode = ssl.CERT_NONE
        return context


async def test_a_foreign_client_that_believes_anybody_is_refused(tmp_path: Path) -> None:
    ours, theirs = Cluster(tmp_path / "ours"), Cluster(tmp_path / "theirs")
    async with serving(ours.tls(1)) as served:
        message, reports = await refused(Trusting(theirs.tls(2)), served)
        assert "certificate refused: " in reports.text()
        assert "may have refused our certificate" in message


async def test_an_expired_client_certificate_is_refused_with_a_word_in_both_logs(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    async with serving(cluster.tls(1)) as served:
        message, reports = await refused(cluster.tls(2, days=-1), served)
        assert "certificate" in message
        assert "certificate refused: certificate has expired" in reports.text()


async def test_an_expired_server_certificate_is_refused(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    async with serving(cluster.tls(1, days=-1)) as served:
        message, reports = await refused(cluster.tls(2), served)
        assert "certificate refused: certificate has expired" in message
        assert "transport.tls_failed" in reports.text()


async def test_a_client_under_another_hosts_certificate_is_refused(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    async with serving(cluster.tls(1)) as served:
        message, reports = await refused(cluster.tls(2, name_host=9), served)
        assert f"the certificate is for host {host(9)}" in message
        assert f"the certificate is for host {host(9)}" in reports.text()


async def test_a_server_under_another_hosts_certificate_is_refused(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    async with serving(cluster.tls(1, name_host=9)) as served:
        message, reports = await refused(cluster.tls(2), served)
        assert f"the certificate belongs to host {host(9)}" in message
        assert "ended before it greeted" in reports.text()


async def test_no_certificate_no_service(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    async with serving(cluster.tls(1)) as served:
        _, reports = await refused(JoiningNodeTls(cluster.authority.certificate_pem), served)
        assert "peer did not return a certificate" in reports.text()


async def test_a_renewed_certificate_counts_for_new_connections(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    server_folder = cluster.folder(1)
    server_tls = NodeTls(server_folder)
    async with serving(server_tls) as served:
        async with calling(cluster.tls(2), served) as (before, _):
            assert await before.call(ECHO, EchoRequest("a"), 5000) == EchoAnswer("a")
            cluster.folder(1, days=-1)  # an expired one, so that its use shows
            server_tls.reload()
            with pytest.raises(Unreachable, match="expired"):
                async with calling(cluster.tls(3), served, number=3):
                    pass
            assert await before.call(ECHO, EchoRequest("b"), 5000) == EchoAnswer("b")
            server_folder.renew(identity(1), SystemClock())
            server_tls.reload()
            async with calling(cluster.tls(4), served, number=4) as (after, _):
                assert await after.call(ECHO, EchoRequest("c"), 5000) == EchoAnswer("c")


def test_a_broken_rotation_keeps_the_old_certificates(tmp_path: Path) -> None:
    folder = Cluster(tmp_path).folder(1)
    tls = NodeTls(folder)
    before = tls.client_context()
    (folder.path / "node.pem").write_bytes(b"clay")
    with pytest.raises(Corruption):
        tls.reload()
    assert tls.client_context() is before


async def test_two_authorities_are_trusted_while_one_replaces_the_other(tmp_path: Path) -> None:
    old, new = Cluster(tmp_path / "old"), Cluster(tmp_path / "new")
    old_folder, new_folder = old.folder(1), new.folder(2)
    (old_folder.path / "trusted-also.pem").write_bytes(new.authority.certificate_pem)
    (new_folder.path / "trusted-also.pem").write_bytes(old.authority.certificate_pem)
    async with serving(NodeTls(old_folder)) as served:
        async with calling(NodeTls(new_folder), served) as (caller, _):
            assert await caller.call(ECHO, EchoRequest("x"), 5000) == EchoAnswer("x")


# ---- join


async def fetch(cluster: Cluster, token: JoinToken, reports: Reports, name: str = NAME) -> object:
    """Asks a node of the cluster whose main server must not be reached without a certificate."""
    async with asyncio.timeout(60), TcpTransport(cluster.tls(1), reports) as transport:
        async with asyncio.TaskGroup() as tasks:
            join_server = Server(tasks, introduction(1), reports)
            main = Server(tasks, introduction(1), reports)
            AuthorityService(cluster.folder(1), CLUSTER, SystemClock(), join_server)
            listening = await transport.listen(free_address(), main.accept, join_server.accept)
            try:
                newcomer = Introduction(host=host(7), cluster=None, cluster_name=name)
                return await fetch_authority(newcomer, SystemRng(), listening.address, token)
            except (Refused, Unreachable) as error:
                return error
            finally:
                assert main.links_open == 0
                join_server.close("the test is over")


async def test_a_token_hands_the_authority_over(tmp_path: Path) -> None:
    cluster, reports = Cluster(tmp_path), Reports()
    token = new_join_token(cluster.authority, 60, SystemClock(), SystemRng())
    handed = await fetch(cluster, token, reports)
    assert getattr(handed, "cluster", None) == CLUSTER
    assert getattr(handed, "certificate_pem", None) == cluster.authority.certificate_pem
    assert getattr(handed, "key_pem", None) == cluster.authority.key_pem
    assert "join.authority_handed_over" in reports.text()
    assert cluster.authority.key_pem.decode() not in repr(handed)


async def test_an_expired_token_is_refused(tmp_path: Path) -> None:
    class Yesterday:
        def boot_ms(self) -> int:
            return 0

        def wall_us(self) -> int:
            return SystemClock().wall_us() - 86_400_000_000

    cluster, reports = Cluster(tmp_path), Reports()
    token = new_join_token(cluster.authority, 60, Yesterday(), SystemRng())
    answer = await fetch(cluster, token, reports)
    assert isinstance(answer, Refused)
    assert "expired" in str(answer)
    assert "join.token_refused" in reports.text()


async def test_a_forged_token_is_refused(tmp_path: Path) -> None:
    cluster, reports = Cluster(tmp_path), Reports()
    good = new_join_token(cluster.authority, 60, SystemClock(), SystemRng())
    longer = JoinToken(
        expires_at_s=good.expires_at_s + 1, nonce=good.nonce, fingerprint=good.fingerprint, code=good.code
    )
    answer = await fetch(cluster, longer, reports)
    assert isinstance(answer, Refused)
    assert "not of this cluster" in str(answer)


async def test_a_token_of_another_cluster_is_never_shown(tmp_path: Path) -> None:
    cluster, other = Cluster(tmp_path / "a"), Cluster(tmp_path / "b", ClusterId(uuid.UUID(int=0xD)))
    reports = Reports()
    answer = await fetch(cluster, new_join_token(other.authority, 60, SystemClock(), SystemRng()), reports)
    assert isinstance(answer, Refused)
    assert "another cluster" in str(answer)
    assert "join." not in reports.text()


async def test_another_clusters_name_is_refused(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    token = new_join_token(cluster.authority, 60, SystemClock(), SystemRng())
    answer = await fetch(cluster, token, Reports(), name="temple")
    assert isinstance(answer, Unreachable)
    assert "'temple'" in str(answer)
