"""The client of CQL and the contacts it is used by: logins, TLS, errors by their classes, nodes that fail."""

import socket
import ssl
import struct
import threading
import uuid
from pathlib import Path

import msgspec
import pytest
from tests.unit.runtime.tls_rig import Cluster as Certificates
from tests.unit.source.cql_stand_in import Answer, Reply, StandIn, failed, one_blob, ready, with_password

from ebla.model.consistency import ConsistencyLevel
from ebla.model.errors import (
    BadCredentials,
    BadProtocol,
    BadSyntax,
    ConnectionLost,
    DeadlineExceeded,
    EblaError,
    InternalError,
    InvalidRequest,
    NotFound,
    Overloaded,
    Refused,
    Stale,
    Unreachable,
    WriteTimeout,
)
from ebla.model.identity import Address, TableId
from ebla.runtime.tls import CqlServerTls
from ebla.source import contact_points as subject
from ebla.source.contact_points import ContactPoints, CqlClient
from ebla.source.cql_client import BoundStatement, CqlSecurity, PageRequest, connect
from ebla.wire.cql import requests
from ebla.wire.cql.frames import Opcode
from ebla.wire.cql.messages import UNSET
from ebla.wire.cql.notation import BodyReader
from ebla.wire.errors import failure_frame
from ebla.wire.frames import encode
from ebla.wire.table_calls import CLOSE_READ, CallAnswer, CallDone, CallRequest, CloseReadRequest, ReadId

REQUEST = CloseReadRequest(ReadId(uuid.UUID(int=1)), TableId(uuid.UUID(int=2)))
DONE = one_blob(encode(CallAnswer(None, encode(CallDone()))))
ONE = ConsistencyLevel.ONE


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "PAUSE_S", 0.01)


def failing(error: EblaError) -> Answer:
    return one_blob(encode(CallAnswer(failure_frame(0, error))))


def always(answer: Answer) -> Reply:
    return ready(lambda _opcode, _body: answer)


def contact_of(*servers: StandIn, security: CqlSecurity | None = None) -> CqlClient:
    return CqlClient(ContactPoints(tuple(server.address for server in servers), security or CqlSecurity()))


def closed_address() -> Address:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        host, port = listener.getsockname()
    return Address(host, port)


# ---- calls


def test_a_call_carries_its_request_and_the_time_that_is_left() -> None:
    with StandIn(always(DONE)) as server, contact_of(server) as contact:
        assert contact.call(CLOSE_READ, REQUEST, 10.0) == CallDone()
        opcode, body = server.requests[-1]
    assert opcode == Opcode.QUERY
    asked = requests.read_query(BodyReader(body))
    assert asked.text == "CALL ebla.close_read(?)"
    (value,) = asked.parameters.values
    assert isinstance(value, bytes)
    call = msgspec.msgpack.decode(value, type=CallRequest)
    assert 1_000 < call.deadline_ms < 10_000
    assert call.request == encode(REQUEST)


def test_what_the_node_says_is_raised_as_it_was() -> None:
    error = NotFound("no such table", advice="look again")
    with StandIn(always(failing(error))) as server, contact_of(server) as contact:
        with pytest.raises(NotFound, match="no such table; look again"):
            contact.call(CLOSE_READ, REQUEST, 10.0)
        assert len(server.requests) == 2, "it is not asked again"


@pytest.mark.parametrize("error", [Stale("old"), Overloaded("full"), DeadlineExceeded("slow"), Unreachable("alone")])
def test_another_node_may_answer(error: EblaError) -> None:
    with StandIn(always(failing(error))) as first, StandIn(always(DONE)) as second:
        with contact_of(first, second) as contact:
            assert contact.call(CLOSE_READ, REQUEST, 10.0) == CallDone()
            assert contact.call(CLOSE_READ, REQUEST, 10.0) == CallDone()
        assert len(first.requests) == 2, "one greeting and one call; then the other is stayed with"


def test_a_node_that_is_not_there_is_passed_over() -> None:
    with StandIn(always(DONE)) as server:
        settings = ContactPoints((closed_address(), server.address))
        with CqlClient(settings) as contact:
            assert contact.call(CLOSE_READ, REQUEST, 10.0) == CallDone()


def test_a_node_that_hangs_leaves_time_for_the_others() -> None:
    held = threading.Event()

    def hang(_opcode: int, _body: bytes) -> Answer:
        held.wait(20)
        return None

    with StandIn(ready(hang)) as first, StandIn(always(DONE)) as second:
        with contact_of(first, second) as contact:
            assert contact.call(CLOSE_READ, REQUEST, 1.0) == CallDone()
        held.set()


def test_nobody_is_there() -> None:
    addresses = closed_address(), closed_address()
    with CqlClient(ContactPoints(addresses)) as contact, pytest.raises(Unreachable) as found:
        contact.call(CLOSE_READ, REQUEST, 10.0)
    assert all(str(found.value).count(str(address)) == 1 for address in addresses)
    assert "ebla status" in found.value.advice


def test_all_of_them_fail() -> None:
    with StandIn(always(failing(Overloaded("full")))) as first, StandIn(always(failing(Stale("old")))) as second:
        with contact_of(first, second) as contact, pytest.raises(Stale, match=r"full.*old"):
            contact.call(CLOSE_READ, REQUEST, 10.0)
        assert len(first.requests) == 2 * subject.ROUNDS_MAX


def test_a_node_of_an_older_release() -> None:
    with StandIn(always(failed(BadSyntax("line 1:0 no viable alternative")))) as server, contact_of(server) as contact:
        with pytest.raises(Refused, match="older release"):
            contact.call(CLOSE_READ, REQUEST, 10.0)


@pytest.mark.parametrize("data", [None, b"", b"\xc1", encode(CallAnswer(None, b"\xc1"))])
def test_an_answer_that_is_none(data: bytes | None) -> None:
    with StandIn(always(one_blob(data))) as server, contact_of(server) as contact:
        with pytest.raises(InternalError, match=r"ebla\.close_read"):
            contact.call(CLOSE_READ, REQUEST, 10.0)


# ---- statements


def test_values_and_levels_arrive() -> None:
    with StandIn(always(one_blob(b"x"))) as server, contact_of(server) as contact:
        statement = BoundStatement("SELECT a FROM t WHERE b = ? AND c = ?", (b"1", None))
        found = contact.query(
            statement, 5.0, level=ConsistencyLevel.ALL, is_idempotent=True, page=PageRequest(7, b"state")
        )
        assert (found.columns, found.rows) == (("answer",), ((b"x",),))
        asked = requests.read_query(BodyReader(server.requests[-1][1]))
    assert asked.parameters.level is ConsistencyLevel.ALL
    assert list(asked.parameters.values) == [b"1", None]
    assert (asked.parameters.page_size, asked.parameters.paging_state) == (7, b"state")


def test_batches_arrive() -> None:
    with StandIn(always((Opcode.RESULT, struct.pack(">i", 1)))) as server, contact_of(server) as contact:
        statements = [BoundStatement("INSERT 1", (b"a", UNSET)), BoundStatement("INSERT 2")]
        contact.batch(statements, ConsistencyLevel.QUORUM, 5.0, timestamp_us=77)
        asked = requests.read_batch(BodyReader(server.requests[-1][1]))
    assert [(item.query, list(item.values)) for item in asked.items] == [("INSERT 1", [b"a", UNSET]), ("INSERT 2", [])]
    assert asked.parameters.level is ConsistencyLevel.QUORUM
    assert asked.parameters.timestamp_us == 77


def test_what_may_have_happened_is_not_done_again_unless_it_may_be() -> None:
    lost = failed(WriteTimeout("too few acknowledged", required=2, received=1))
    with StandIn(always(lost)) as first, StandIn(always(one_blob(b""))) as second:
        with contact_of(first, second) as contact:
            with pytest.raises(WriteTimeout):
                contact.query(BoundStatement("TRUNCATE t"), 5.0, is_idempotent=False)
            assert second.requests == []
            contact.query(BoundStatement("INSERT"), 5.0, is_idempotent=True)
        assert len(second.requests) == 2


def test_a_connection_that_ends_in_the_middle() -> None:
    answers = iter((None, one_blob(b"x")))
    with StandIn(ready(lambda _opcode, _body: next(answers))) as server, contact_of(server) as contact:
        with pytest.raises(ConnectionLost):
            contact.query(BoundStatement("TRUNCATE t"), 5.0, is_idempotent=False)
        assert contact.query(BoundStatement("SELECT"), 5.0, is_idempotent=False).rows == ((b"x",),)


@pytest.mark.parametrize(
    "error", [InvalidRequest("wrong"), BadSyntax("wrong"), Overloaded("wrong"), Stale("wrong"), WriteTimeout("wrong")]
)
def test_errors_keep_their_class(error: EblaError) -> None:
    with StandIn(always(failed(error))) as server, connect(server.address, CqlSecurity(), 5.0) as connection:
        with pytest.raises(type(error), match="wrong") as found:
            connection.query(BoundStatement("SELECT"), ONE, 5.0, None)
        assert found.value.outcome is error.outcome
        assert connection.is_open


def test_an_error_of_no_known_code() -> None:
    answer = Opcode.ERROR, struct.pack(">iH", 0x7777, 4) + b"odd!"
    with StandIn(always(answer)) as server, connect(server.address, CqlSecurity(), 5.0) as connection:
        with pytest.raises(InternalError, match=r"0x7777: odd!"):
            connection.query(BoundStatement("SELECT"), ONE, 5.0, None)


# ---- who we are


def test_a_password() -> None:
    with StandIn(with_password("me", "secret", lambda _opcode, _body: one_blob(b"x"))) as server:
        with contact_of(server, security=CqlSecurity(username="me", password="secret")) as contact:
            assert contact.query(BoundStatement("SELECT"), 5.0, is_idempotent=True).rows == ((b"x",),)
        with (
            contact_of(server, security=CqlSecurity(username="me", password="guess")) as contact,
            pytest.raises(BadCredentials),
        ):
            contact.query(BoundStatement("SELECT"), 5.0, is_idempotent=True)
        with contact_of(server) as contact, pytest.raises(BadCredentials, match="username and password"):
            contact.query(BoundStatement("SELECT"), 5.0, is_idempotent=True)


@pytest.fixture
def certificates(tmp_path: Path) -> tuple[ssl.SSLContext, str, str]:
    """A server's context, its authority, and another one."""
    ours, theirs = Certificates(tmp_path / "ours"), Certificates(tmp_path / "theirs")
    authorities = [one.authority.certificate_pem.decode() for one in (ours, theirs)]
    return CqlServerTls(ours.folder(1)).context(), authorities[0], authorities[1]


def test_tls(certificates: tuple[ssl.SSLContext, str, str]) -> None:
    context, authority, another = certificates
    with StandIn(always(one_blob(b"x")), context) as server:
        for security in (CqlSecurity(is_tls=True, authority_pem=authority), CqlSecurity(is_tls=True, verifies=False)):
            with contact_of(server, security=security) as contact:
                assert contact.query(BoundStatement("SELECT"), 5.0, is_idempotent=True).rows == ((b"x",),)
        with contact_of(server, security=CqlSecurity(is_tls=True, authority_pem=another)) as contact:
            with pytest.raises(Unreachable, match="no TLS with"):
                contact.query(BoundStatement("SELECT"), 5.0, is_idempotent=True)


def test_a_certificate_of_a_system_authority_counts_only_for_the_host_name_it_names(
    certificates: tuple[ssl.SSLContext, str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node's certificate is signed by an authority that the system trusts, and names a node and no host."""
    context, authority, _ = certificates
    (tmp_path / "system.pem").write_text(authority)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "system.pem"))
    security = CqlSecurity(is_tls=True, trusts_system=True, username="me", password="secret")
    with StandIn(with_password("me", "secret", always(DONE)), context) as server:
        with contact_of(server, security=security) as contact, pytest.raises(Unreachable, match="no TLS with"):
            contact.query(BoundStatement("SELECT"), 5.0, is_idempotent=True)
        assert server.requests == [], "no password was sent"
    with pytest.raises(InvalidRequest, match=r"ssl\.ca is missing"):
        CqlSecurity(is_tls=True)


def test_tls_where_there_is_none() -> None:
    with StandIn(always(one_blob(b"x"))) as server:
        with (
            contact_of(server, security=CqlSecurity(is_tls=True, verifies=False)) as contact,
            pytest.raises(Unreachable),
        ):
            contact.query(BoundStatement("SELECT"), 5.0, is_idempotent=True)


def test_something_else_than_cql_listens_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def speak() -> None:
            connection, _ = listener.accept()
            connection.recv(100)
            connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            connection.close()

        thread = threading.Thread(target=speak)
        thread.start()
        host, port = listener.getsockname()
        with pytest.raises(BadProtocol, match="does not answer in CQL"):
            connect(Address(host, port), CqlSecurity(), 5.0)
        thread.join(10)
