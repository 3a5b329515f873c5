"""The cluster's certificate authority, a node's certificate, and the TLS contexts made of them.

`<data>/tls` holds these files, all of this user alone:

    authority.pem  authority.key   the cluster's authority: made by its first node, handed over at join
    node.pem       node.key        this node's certificate, which names its host id and cluster
    trusted-also.pem               only while one authority replaces another: the other one's certificate

On a connection between nodes both sides show a certificate. The check covers the authority's signature, the validity
period, and the host id, which must be that of the introduction. DNS names are not used: nodes move.
"""

import datetime
import hashlib
import os
import ssl
import stat
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from ebla.model.errors import Corruption, InvalidRequest
from ebla.model.identity import ClusterId, HostId
from ebla.ports.clock import Clock
from ebla.runtime.data_folder import NodeIdentity, write_durably

AUTHORITY_DAYS = 3650
NODE_DAYS = 365
BACKDATE_HOURS = 24
"""Certificates are valid from a day ago: clocks of nodes differ, and a new node must not wait for the slowest."""

_HOST_URI = "ebla:host:"
_CLUSTER_URI = "ebla:cluster:"


@dataclass(frozen=True, slots=True)
class NodeCertificate:
    certificate_pem: bytes
    key_pem: bytes

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.fingerprint().hex()[:16]}…)"

    def fingerprint(self) -> bytes:
        return fingerprint_of(self.certificate_pem)


class Authority(NodeCertificate):
    """The key admits nodes, so only the owner of a node's folder can read it."""

    __slots__ = ()

    def token_key(self) -> bytes:
        """Signs join tokens: only nodes of the cluster can make and check them."""
        return hashlib.sha256(b"ebla join token\0" + self.key_pem).digest()


@dataclass(frozen=True, slots=True)
class Validity:
    """From when to when a certificate is valid."""

    begins: datetime.datetime
    ends: datetime.datetime

    @classmethod
    def days(cls, clock: Clock, days: int) -> "Validity":
        now = datetime.datetime.fromtimestamp(clock.wall_us() / 1e6, datetime.UTC)
        return cls(now - datetime.timedelta(hours=BACKDATE_HOURS), now + datetime.timedelta(days=days))


# ---- making certificates


def make_authority(cluster: ClusterId, cluster_name: str, validity: Validity) -> Authority:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, cluster_name[:64] or "ebla"),
            x509.NameAttribute(NameOID.COMMON_NAME, f"authority of cluster {cluster}"[:64]),
        ]
    )
    builder = _builder(name, name, key.public_key(), validity)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_key_usage(authority=True), critical=True)
    builder = builder.add_extension(
        x509.SubjectAlternativeName([x509.UniformResourceIdentifier(f"{_CLUSTER_URI}{cluster}")]), critical=False
    )
    return Authority(_pem(builder.sign(key, hashes.SHA256())), _key_pem(key))


def make_node_certificate(
    authority: Authority, host: HostId, cluster: ClusterId, validity: Validity
) -> NodeCertificate:
    issuer_key = _load_key(authority.key_pem)
    issuer = x509.load_pem_x509_certificate(authority.certificate_pem)
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"host {host}")])
    builder = _builder(name, issuer.subject, key.public_key(), validity)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_key_usage(authority=False), critical=True)
    usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
    names = [
        x509.UniformResourceIdentifier(f"{_HOST_URI}{host}"),
        x509.UniformResourceIdentifier(f"{_CLUSTER_URI}{cluster}"),
    ]
    builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    builder = builder.add_extension(
        x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False
    )
    return NodeCertificate(_pem(builder.sign(issuer_key, hashes.SHA256())), _key_pem(key))


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, validity: Validity
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(validity.begins)
        .not_valid_after(validity.ends)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _key_usage(*, authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not authority,
        key_cert_sign=authority,
        crl_sign=authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _load_key(key_pem: bytes) -> ec.EllipticCurvePrivateKey:
    key = serialization.load_pem_private_key(key_pem, None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise InvalidRequest("the authority's key is not an elliptic curve key")
    return key


# ---- reading certificates


def fingerprint_of(certificate_pem: bytes) -> bytes:
    try:
        return hashlib.sha256(ssl.PEM_cert_to_DER_cert(certificate_pem.decode("ascii"))).digest()
    except ValueError as error:
        raise InvalidRequest(f"not a certificate: {error}") from None


def check_authority(authority: Authority) -> None:
    """Raises `InvalidRequest` unless the key belongs to the certificate and the certificate signed itself."""
    try:
        certificate = x509.load_pem_x509_certificate(authority.certificate_pem)
        key = _load_key(authority.key_pem)
        certificate.verify_directly_issued_by(certificate)
    except (ValueError, TypeError, InvalidSignature) as error:
        raise InvalidRequest(f"not a certificate authority: {error}") from None
    if certificate.public_key() != key.public_key():
        raise InvalidRequest("the authority's key does not belong to its certificate")


def host_in_peer_certificate(peer: Mapping[str, Any] | None) -> HostId | None:
    """The host id in what `getpeercert()` returned. It is empty or None where nothing was verified."""
    for kind, value in (peer or {}).get("subjectAltName", ()):
        if kind == "URI" and value.startswith(_HOST_URI):
            try:
                return HostId(uuid.UUID(value.removeprefix(_HOST_URI)))
            except ValueError:
                return None
    return None


# ---- the folder


class TlsFolder:
    """`<data>/tls`. Files are written atomically: to a temporary file, synced, renamed. A key is written before its
    certificate, so that an interrupted start leaves an unused key, never a certificate without a key."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def authority(self) -> Authority:
        return Authority(self._read("authority.pem"), self._read("authority.key"))

    def trusted_pem(self) -> bytes:
        """The authority, and others that an operator trusts while one replaces another."""
        others = self.path / "trusted-also.pem"
        own = self._read("authority.pem")
        return own + b"\n" + others.read_bytes() if others.exists() else own

    def node_certificate(self) -> NodeCertificate:
        return NodeCertificate(self._read("node.pem"), self._read("node.key"))

    def store_authority(self, authority: Authority) -> None:
        check_authority(authority)
        self._write("authority.key", authority.key_pem)
        self._write("authority.pem", authority.certificate_pem)

    def store_node_certificate(self, certificate: NodeCertificate) -> None:
        self._write("node.key", certificate.key_pem)
        self._write("node.pem", certificate.certificate_pem)

    def renew(self, identity: NodeIdentity, clock: Clock) -> None:
        """A new certificate for this node. New connections use it after `NodeTls.reload`."""
        certificate = make_node_certificate(
            self.authority(), identity.host, identity.cluster, Validity.days(clock, NODE_DAYS)
        )
        self.store_node_certificate(certificate)

    def check_owner_only(self) -> None:
        """Raises `InvalidRequest` where another user could read a key."""
        if stat.S_IMODE(self.path.stat().st_mode) & 0o077:
            raise InvalidRequest(f"{self.path} is open to others", advice=f"chmod 700 {self.path}")
        for key in sorted(self.path.glob("*.key")):
            if stat.S_IMODE(key.stat().st_mode) & 0o077:
                raise InvalidRequest(f"{key} is readable by others", advice=f"chmod 600 {key}")

    def _read(self, name: str) -> bytes:
        path = self.path / name
        try:
            return path.read_bytes()
        except FileNotFoundError:
            raise Corruption(f"{path} is missing", advice="docs/certificates.md describes how to restore it") from None

    def _write(self, name: str, content: bytes) -> None:
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.chmod(self.path, 0o700)
        write_durably(self.path / name, content)


# ---- contexts


class NodeTls:
    """The contexts of a node, for `TcpTransport`. `reload` reads the folder again; open connections stay as they are.

    A folder that cannot be read leaves the contexts as they were: a half-finished rotation must not isolate a node.
    """

    def __init__(self, folder: TlsFolder) -> None:
        self._folder = folder
        self._required, self._optional, self._client = self._build()

    def reload(self) -> None:
        self._required, self._optional, self._client = self._build()

    def server_context(self, *, certificate_optional: bool) -> ssl.SSLContext:
        return self._optional if certificate_optional else self._required

    def client_context(self) -> ssl.SSLContext:
        return self._client

    def _build(self) -> tuple[ssl.SSLContext, ssl.SSLContext, ssl.SSLContext]:
        self._folder.check_owner_only()
        required = self._context(ssl.PROTOCOL_TLS_SERVER, ssl.CERT_REQUIRED)
        optional = self._context(ssl.PROTOCOL_TLS_SERVER, ssl.CERT_OPTIONAL)
        client = self._context(ssl.PROTOCOL_TLS_CLIENT, ssl.CERT_REQUIRED)
        return required, optional, client

    def _context(self, protocol: int, verify: ssl.VerifyMode) -> ssl.SSLContext:
        context = _bare_context(protocol)
        context.verify_mode = verify
        _load_own(context, self._folder)
        return context


class CqlServerTls:
    """The context for CQL clients, which show no certificate. They may use older TLS versions than nodes."""

    def __init__(self, folder: TlsFolder) -> None:
        self._folder = folder
        self._context = self._build()

    def reload(self) -> None:
        self._context = self._build()

    def context(self) -> ssl.SSLContext:
        return self._context

    def _build(self) -> ssl.SSLContext:
        context = _bare_context(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.verify_mode = ssl.CERT_NONE
        _load_own(context, self._folder)
        return context


class JoiningNodeTls:
    """The contexts of a node that has no certificate yet and only connects. Until it has the authority's certificate it
    trusts nothing it receives; with it, only a peer with a certificate of that authority."""

    def __init__(self, authority_pem: bytes | None) -> None:
        self._context = _bare_context(ssl.PROTOCOL_TLS_CLIENT)
        self._context.verify_mode = ssl.CERT_NONE
        if authority_pem is not None:
            self._context.verify_mode = ssl.CERT_REQUIRED
            self._context.load_verify_locations(cadata=authority_pem.decode("ascii"))

    def server_context(self, *, certificate_optional: bool) -> ssl.SSLContext:
        raise InvalidRequest(f"a node without a certificate cannot listen ({certificate_optional=})")

    def client_context(self) -> ssl.SSLContext:
        return self._context


def _load_own(context: ssl.SSLContext, folder: TlsFolder) -> None:
    try:
        context.load_verify_locations(cadata=folder.trusted_pem().decode("ascii"))
        context.load_cert_chain(folder.path / "node.pem", folder.path / "node.key")
    except (OSError, ValueError) as error:  # TLS errors are OSErrors
        # Also after a renewal that was interrupted between its two files.
        raise Corruption(
            f"certificates in {folder.path} cannot be used: {error}",
            advice="if the authority's files are intact, `ebla renew` makes new files for the node",
        ) from None


def _bare_context(protocol: int) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # certificates name hosts by id; the wire compares it with the introduction
    context.options |= ssl.OP_NO_TICKET  # a resumed session would outlive a revoked certificate
    if protocol == ssl.PROTOCOL_TLS_SERVER:
        context.num_tickets = 0
    return context
