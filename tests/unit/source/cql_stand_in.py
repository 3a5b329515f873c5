"""A CQL server that says what a test wants it to, for clients that block."""

import socket
import ssl
import threading
from collections.abc import Callable
from types import TracebackType

from ebla.model.cql_types import parse_type
from ebla.model.errors import EblaError
from ebla.model.identity import Address
from ebla.wire.cql import notation, responses
from ebla.wire.cql.frames import HEADER, HEADER_BYTES, RESPONSE, VERSION, Opcode
from ebla.wire.cql.messages import ColumnSpec, Rows

Answer = tuple[Opcode, bytes] | None
"""None: the connection is closed without one."""
Reply = Callable[[int, bytes], Answer]
"""To an opcode and a body."""
BLOB = (ColumnSpec(keyspace="ks", table="t", name="answer", type=parse_type("blob")),)


def one_blob(data: bytes | None) -> Answer:
    return Opcode.RESULT, responses.rows(Rows(BLOB, ((data,),)))


def failed(error: EblaError) -> Answer:
    return Opcode.ERROR, responses.error(error)


def ready(reply: Reply) -> Reply:
    """Greets, and leaves the rest to the other."""

    def answer(opcode: int, body: bytes) -> Answer:
        return (Opcode.READY, b"") if opcode == Opcode.STARTUP else reply(opcode, body)

    return answer


def with_password(name: str, password: str, reply: Reply) -> Reply:
    def answer(opcode: int, body: bytes) -> Answer:
        if opcode == Opcode.STARTUP:
            return Opcode.AUTHENTICATE, notation.string("org.apache.cassandra.auth.PasswordAuthenticator")
        if opcode == Opcode.AUTH_RESPONSE:
            credentials = notation.BodyReader(body).data()
            is_right = credentials == b"\0".join((b"", name.encode(), password.encode()))
            return (Opcode.AUTH_SUCCESS, notation.NULL_LENGTH) if is_right else _bad_credentials()
        return reply(opcode, body)

    return answer


def _bad_credentials() -> Answer:
    return Opcode.ERROR, notation.integer(0x0100) + notation.string("wrong")


class StandIn:
    """Listens on an address of its own while it is open."""

    def __init__(self, reply: Reply, tls: ssl.SSLContext | None = None) -> None:
        self._reply = reply
        self._tls = tls
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._connections: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._is_over = False
        self.requests: list[tuple[int, bytes]] = []

    @property
    def address(self) -> Address:
        host, port = self._listener.getsockname()
        return Address(host, port)

    def __enter__(self) -> "StandIn":
        self._run(self._accept)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._is_over = True
        # Closing alone does not wake who waits for it.
        for one in (self._listener, *self._connections):
            try:
                one.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # it was closed by the other side
            one.close()
        for thread in self._threads:
            thread.join(10)
            assert not thread.is_alive()

    def _run(self, work: Callable[[], None]) -> None:
        self._threads.append(threading.Thread(target=work))
        self._threads[-1].start()

    def _accept(self) -> None:
        while not self._is_over:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._connections.append(connection)
            self._run(lambda connection=connection: self._serve(connection))  # type: ignore[misc]  # bound now

    def _serve(self, connection: socket.socket) -> None:
        try:
            if self._tls is not None:
                connection = self._tls.wrap_socket(connection, server_side=True)
                self._connections.append(connection)
            while (header := _exactly(connection, HEADER_BYTES)) is not None:
                _, _, stream, opcode, size = HEADER.unpack(header)
                body = _exactly(connection, size) or b""
                self.requests.append((opcode, body))
                answer = self._reply(opcode, body)
                if answer is None:
                    break
                found, data = answer
                connection.sendall(HEADER.pack(RESPONSE | VERSION, 0, stream, found, len(data)) + data)
        except OSError:
            pass  # the client has gone
        finally:
            connection.close()


def _exactly(connection: socket.socket, size: int) -> bytes | None:
    data = b""
    while len(data) < size:
        piece = connection.recv(size - len(data))
        if not piece:
            return None
        data += piece
    return data
