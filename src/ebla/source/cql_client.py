"""A small client of CQL, version 4: one connection, one request at a time, and every wait has a timeout.

A Spark driver sends a handful of requests. What a full driver adds (pools, topology, events in threads of its own)
would only slow its start.
"""

import socket
import ssl
import struct
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import NamedTuple

from ebla.model.consistency import ConsistencyLevel
from ebla.model.error_codes import CqlCode
from ebla.model.errors import (
    AlreadyExists,
    BadConfiguration,
    BadCredentials,
    BadProtocol,
    BadSyntax,
    ConnectionLost,
    DeadlineExceeded,
    EblaError,
    InternalError,
    InvalidRequest,
    Overloaded,
    ReadFailed,
    ReadTimeout,
    Refused,
    Stale,
    Unavailable,
    Unprepared,
    Unreachable,
    WriteFailed,
    WriteTimeout,
)
from ebla.model.identity import Address
from ebla.wire.cql import notation
from ebla.wire.cql.frames import HEADER, HEADER_BYTES, RESPONSE, VERSION, BatchKind, FrameFlag, Opcode, QueryFlag
from ebla.wire.cql.messages import UNSET, BoundValue
from ebla.wire.cql.notation import BodyReader

ANSWER_BYTES_MAX = 256 << 20
_ROWS_KIND = 2
_GLOBAL_TABLE, _MORE_PAGES, _NO_METADATA = 1, 2, 4
_UNSET_LENGTH = struct.pack(">i", -2)

ERROR_CLASSES: Mapping[int, type[EblaError]] = {
    CqlCode.SERVER_ERROR: InternalError,
    CqlCode.PROTOCOL_ERROR: BadProtocol,
    CqlCode.BAD_CREDENTIALS: BadCredentials,
    CqlCode.UNAVAILABLE: Unavailable,
    CqlCode.OVERLOADED: Overloaded,
    CqlCode.IS_BOOTSTRAPPING: Stale,
    CqlCode.WRITE_TIMEOUT: WriteTimeout,
    CqlCode.READ_TIMEOUT: ReadTimeout,
    CqlCode.READ_FAILURE: ReadFailed,
    CqlCode.WRITE_FAILURE: WriteFailed,
    CqlCode.SYNTAX_ERROR: BadSyntax,
    CqlCode.UNAUTHORIZED: Refused,
    CqlCode.INVALID: InvalidRequest,
    CqlCode.CONFIG_ERROR: BadConfiguration,
    CqlCode.ALREADY_EXISTS: AlreadyExists,
    CqlCode.UNPREPARED: Unprepared,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CqlSecurity:
    """How to connect. Certificates of a cluster's own authority name nodes by their ids and not by addresses, so only
    the authority is checked: it signs nothing but nodes of its cluster. An authority of the system signs certificates
    of anyone for their own host names, so there the host name is checked too: otherwise any server on the path could
    show a valid certificate and receive the password."""

    username: str = ""
    password: str = field(default="", repr=False)
    is_tls: bool = False
    authority_pem: str = ""
    trusts_system: bool = False
    """The authorities of this machine are trusted, for certificates with the node's host name."""
    verifies: bool = True

    def __post_init__(self) -> None:
        if self.is_tls and self.verifies and not self.authority_pem and not self.trusts_system:
            raise InvalidRequest(
                "the option ssl is true and ssl.ca is missing, so the certificate of a node cannot be verified",
                advice="ssl.ca is the certificate file of the cluster's authority (tls/authority.pem in a node's "
                "folder); ssl.ca=system trusts the authorities of this machine and checks host names",
            )

    def context(self) -> ssl.SSLContext | None:
        if not self.is_tls:
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.check_hostname = self.verifies and self.trusts_system
        if not self.verifies:
            context.verify_mode = ssl.CERT_NONE
        elif self.trusts_system:
            context.load_default_certs()
        else:
            context.load_verify_locations(cadata=self.authority_pem)
        return context


@dataclass(frozen=True, slots=True)
class CqlRows:
    """The answer to a statement; one without rows has no columns."""

    columns: tuple[str, ...] = ()
    rows: tuple[tuple[bytes | None, ...], ...] = ()
    paging_state: bytes | None = None


class PageRequest(NamedTuple):
    rows_max: int
    state: bytes | None
    """Where to continue; None: at the beginning."""


@dataclass(frozen=True, slots=True)
class BoundStatement:
    """Values are in wire format; `UNSET` leaves a column as it is."""

    text: str
    values: Sequence[BoundValue] = ()


class CqlConnection:
    """For one thread. After `Unreachable`, `ConnectionLost` or `DeadlineExceeded` of the connection itself it is
    closed, since an answer may still be in flight."""

    def __init__(self, connected: socket.socket, peer: str) -> None:
        self._socket = connected
        self._peer = peer
        self._stream = 0
        self.is_open = True

    def __enter__(self) -> "CqlConnection":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self.is_open = False
        self._socket.close()

    def handshake(self, security: CqlSecurity, deadline: float) -> None:
        """STARTUP, and authentication where the node requires it."""
        options = {"CQL_VERSION": "3.0.0", "DRIVER_NAME": "ebla-spark"}
        body = notation.short(len(options)) + b"".join(map(_pair, options, options.values()))
        opcode, _ = self._exchange(Opcode.STARTUP, body, deadline)
        if opcode == Opcode.AUTHENTICATE:
            if not security.username:
                raise BadCredentials(f"{self._peer} requires a login", advice="give the options username and password")
            token = b"\0".join((b"", security.username.encode(), security.password.encode()))
            opcode, _ = self._exchange(Opcode.AUTH_RESPONSE, notation.value(token), deadline)
        if opcode not in (Opcode.READY, Opcode.AUTH_SUCCESS):
            raise BadProtocol(f"{self._peer} answered STARTUP with opcode {opcode}")

    def query(
        self,
        statement: BoundStatement,
        level: ConsistencyLevel,
        timeout_s: float,
        page: PageRequest | None,
    ) -> CqlRows:
        flags, extra = _paging(page)
        values = b""
        if statement.values:
            flags |= QueryFlag.VALUES
            values = _values(statement.values)
        text = statement.text.encode()
        head = notation.integer(len(text)) + text + notation.short(level) + notation.byte(flags)
        opcode, reader = self._exchange(Opcode.QUERY, head + values + extra, time.monotonic() + timeout_s)
        return self._rows(opcode, reader)

    def batch(
        self,
        statements: Sequence[BoundStatement],
        level: ConsistencyLevel,
        timeout_s: float,
        timestamp_us: int | None = None,
    ) -> None:
        """Unlogged."""
        items = b"".join(map(_batch_item, statements))
        flags = 0 if timestamp_us is None else int(QueryFlag.TIMESTAMP)
        stamp = b"" if timestamp_us is None else struct.pack(">q", timestamp_us)
        head = notation.byte(BatchKind.UNLOGGED.value) + notation.short(len(statements))
        body = head + items + notation.short(level) + notation.byte(flags) + stamp
        self._exchange(Opcode.BATCH, body, time.monotonic() + timeout_s)

    # ---- frames

    def _exchange(self, opcode: Opcode, body: bytes, deadline: float) -> tuple[int, BodyReader]:
        """Raises the error that the peer sent."""
        if not self.is_open:
            raise Unreachable(f"the connection to {self._peer} was closed")
        self._stream = (self._stream + 1) % (1 << 15)
        try:
            self._send(HEADER.pack(VERSION, 0, self._stream, opcode, len(body)) + body, deadline)
            found, flags, answer = self._receive(deadline)
        except BaseException:
            # The exchange is incomplete: the next frame would be taken for the answer to another request.
            self.close()
            raise
        reader = BodyReader(answer)
        _skip_extras(reader, flags)
        if found == Opcode.ERROR:
            raise read_error(reader, self._peer)
        return found, reader

    def _send(self, data: bytes, deadline: float) -> None:
        try:
            self._socket.settimeout(_left(deadline, self._peer))
            self._socket.sendall(data)
        except TimeoutError:
            raise DeadlineExceeded(f"{self._peer} accepted no request in time") from None
        except OSError as error:
            raise ConnectionLost(f"the connection to {self._peer} broke: {error}") from None

    def _receive(self, deadline: float) -> tuple[int, int, bytes]:
        while True:
            version, flags, stream, opcode, size = HEADER.unpack(self._read(HEADER_BYTES, deadline))
            if version != RESPONSE | VERSION or not 0 <= size <= ANSWER_BYTES_MAX:
                raise BadProtocol(
                    f"{self._peer} does not answer in CQL, version 4",
                    advice="`contact` is the CQL port of a node (9042 unless its options say otherwise), and `ssl` "
                    "must be true exactly where that port uses TLS",
                )
            body = self._read(size, deadline)
            if stream == self._stream:
                return opcode, flags, body

    def _read(self, size: int, deadline: float) -> bytes:
        found = bytearray(size)
        view, got = memoryview(found), 0
        while got < size:
            try:
                self._socket.settimeout(_left(deadline, self._peer))
                count = self._socket.recv_into(view[got:])
            except TimeoutError:
                raise DeadlineExceeded(f"{self._peer} did not answer in time") from None
            except OSError as error:
                raise ConnectionLost(f"the connection to {self._peer} broke: {error}") from None
            if not count:
                raise ConnectionLost(f"{self._peer} closed the connection before it answered")
            got += count
        return bytes(found)

    def _rows(self, opcode: int, reader: BodyReader) -> CqlRows:
        if opcode != Opcode.RESULT:
            raise BadProtocol(f"{self._peer} answered a statement with opcode {opcode}")
        if reader.integer() != _ROWS_KIND:
            return CqlRows()
        columns, paging_state = _metadata(reader)
        rows = tuple(tuple(reader.data() for _ in columns) for _ in range(reader.integer()))
        return CqlRows(columns, rows, paging_state)


def connect(address: Address, security: CqlSecurity, timeout_s: float) -> CqlConnection:
    """Raises `Unreachable` for any failure before the handshake ended."""
    peer, deadline = str(address), time.monotonic() + timeout_s
    try:
        plain = socket.create_connection((address.host, address.port), timeout_s)
    except OSError as error:
        raise Unreachable(f"{peer} cannot be reached: {error.strerror or error}") from None
    try:
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        context = security.context()
        connected = plain if context is None else context.wrap_socket(plain, server_hostname=address.host)
        connection = CqlConnection(connected, peer)
        connection.handshake(security, deadline)
    except ssl.SSLError as error:
        plain.close()
        raise Unreachable(
            f"no TLS with {peer}: {error.reason or error}",
            advice="`ssl.ca` names the certificate of the cluster's authority (tls/authority.pem in a node's folder); "
            "with ssl.ca=system the certificate must be valid for the host name in `contact`",
        ) from None
    except (OSError, ConnectionLost, DeadlineExceeded) as error:
        # No request was sent yet, so no outcome can be unknown.
        plain.close()
        raise Unreachable(f"{peer} does not complete the handshake: {error}") from None
    except BaseException:
        plain.close()
        raise
    return connection


def read_error(reader: BodyReader, peer: str) -> EblaError:
    code, message = reader.integer(), reader.string()
    kind = ERROR_CLASSES.get(code)
    if kind is None:
        return InternalError(f"{peer} answered error {code:#06x}: {message}")
    return kind(message)


def _left(deadline: float, peer: str) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise DeadlineExceeded(f"{peer} did not answer in time")
    return left


def _pair(key: str, text: str) -> bytes:
    return notation.string(key) + notation.string(text)


def _values(values: Sequence[BoundValue]) -> bytes:
    parts = [_UNSET_LENGTH if value is UNSET else notation.value(value) for value in values]
    return notation.short(len(parts)) + b"".join(parts)


def _batch_item(statement: BoundStatement) -> bytes:
    text = statement.text.encode()
    return notation.byte(0) + notation.integer(len(text)) + text + _values(statement.values)


def _paging(page: PageRequest | None) -> tuple[int, bytes]:
    if page is None:
        return 0, b""
    if page.state is None:
        return QueryFlag.PAGE_SIZE, notation.integer(page.rows_max)
    return QueryFlag.PAGE_SIZE | QueryFlag.PAGING_STATE, notation.integer(page.rows_max) + notation.value(page.state)


def _skip_extras(reader: BodyReader, flags: int) -> None:
    if flags & FrameFlag.TRACING:
        reader.long()
        reader.long()
    if flags & FrameFlag.WARNING:
        reader.string_list()
    if flags & FrameFlag.CUSTOM_PAYLOAD:
        reader.bytes_map()


def _metadata(reader: BodyReader) -> tuple[tuple[str, ...], bytes | None]:
    flags, count = reader.integer(), reader.integer()
    paging_state = reader.data() if flags & _MORE_PAGES else None
    if flags & _NO_METADATA:
        return ("",) * count, paging_state
    if flags & _GLOBAL_TABLE:
        reader.string()
        reader.string()
    names = []
    for _ in range(count):
        if not flags & _GLOBAL_TABLE:
            reader.string()
            reader.string()
        names.append(reader.string())
        _skip_type(reader)
    return tuple(names), paging_state


_CUSTOM, _LIST, _MAP, _SET, _TUPLE = 0x00, 0x20, 0x21, 0x22, 0x31


def _skip_type(reader: BodyReader) -> None:
    """The caller knows the types of what it reads."""
    kind = reader.short()
    if kind == _CUSTOM:
        reader.string()
    inner = {_LIST: 1, _SET: 1, _MAP: 2}.get(kind, 0)
    for _ in range(reader.short() if kind == _TUPLE else inner):
        _skip_type(reader)
