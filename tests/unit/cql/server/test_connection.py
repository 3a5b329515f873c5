"""One connection: handshake, concurrent requests, bounds, errors."""

import asyncio
import struct

import pytest
from tests.async_tests import runs_in, settled
from tests.unit.cql.protocol_rig import (
    PEER,
    STARTUP_BODY,
    ConnectionRig,
    Futures,
    ScriptedExecutor,
    Wired,
    error_of,
    execute,
    long_string,
    query,
    request,
    with_connection,
)

from ebla.cql.authentication import PASSWORD_AUTHENTICATOR
from ebla.cql.executor import StartedRequest
from ebla.model.cql_types import SCALARS
from ebla.model.error_codes import CqlCode
from ebla.model.errors import (
    BadCredentials,
    Corruption,
    DiskFull,
    EblaError,
    InternalError,
    ReadFailed,
    Unavailable,
    WriteTimeout,
)
from ebla.wire.cql import notation
from ebla.wire.cql.compression import LZ4
from ebla.wire.cql.frames import EVENT_STREAM, FrameFlag, Opcode
from ebla.wire.cql.messages import ColumnSpec, CqlResponse, Rows
from ebla.wire.cql.notation import BodyReader
from ebla.wire.cql.responses import EventKind

pytestmark = runs_in(with_connection)

VOID = struct.pack(">i", 1)


def startup(options: dict[str, str], *, stream: int = 1, flags: int = 0) -> bytes:
    entries = b"".join(notation.string(key) + notation.string(value) for key, value in options.items())
    return request(Opcode.STARTUP, notation.short(len(options)) + entries, stream=stream, flags=flags)


# ---- greeting


async def test_options_and_startup(wired: Wired, /) -> None:
    other = Wired(ConnectionRig(), asyncio.TaskGroup())
    (supported,) = other.ask(request(Opcode.OPTIONS, stream=5))
    assert (supported.opcode, supported.stream) == (Opcode.SUPPORTED, 5)
    options = {"CQL_VERSION": "3.0.0", "DRIVER_NAME": "d", "DRIVER_VERSION": "9", "TABLETS_ROUTING_V1": ""}
    (ready,) = other.ask(startup(options, stream=6))
    assert (ready.opcode, ready.stream, ready.body) == (Opcode.READY, 6, b"")
    assert other.connection.client.tablet_routing
    assert not wired.connection.client.tablet_routing
    row = other.connection.system_row()
    assert (row["connection_stage"], row["driver_name"], row["driver_version"]) == ("READY", "d", "9")
    assert (row["address"], row["port"], row["username"]) == (PEER.host, PEER.port, "anonymous")


@pytest.mark.parametrize("version", [1, 2, 5, 65, 66])
async def test_an_unknown_version_is_answered_in_our_own_and_closed(_: Wired, /, version: int) -> None:
    other = Wired(ConnectionRig(), asyncio.TaskGroup())
    (answer,) = other.ask(request(Opcode.OPTIONS, stream=0, version=version))
    assert (answer.version, answer.stream) == (4, 0)
    code, words = error_of(answer)
    assert code == CqlCode.PROTOCOL_ERROR
    assert f"({version})" in words
    assert other.transport.closed is not None


@pytest.mark.parametrize("version", [3, 4])
async def test_answers_are_of_the_version_of_their_request(_: Wired, /, version: int) -> None:
    other = Wired(ConnectionRig(), asyncio.TaskGroup())
    (ready,) = other.ask(request(Opcode.STARTUP, STARTUP_BODY, version=version))
    assert (ready.version, ready.opcode) == (version, Opcode.READY)


@pytest.mark.parametrize(
    "options", [{}, {"CQL_VERSION": "4.0"}, {"CQL_VERSION": "3.0.0", "COMPRESSION": "snappy"}], ids=str
)
async def test_a_startup_that_cannot_be_is_refused(_: Wired, /, options: dict[str, str]) -> None:
    other = Wired(ConnectionRig(), asyncio.TaskGroup())
    (answer,) = other.ask(startup(options))
    assert error_of(answer)[0] == CqlCode.PROTOCOL_ERROR
    (ready,) = other.ask(startup({"CQL_VERSION": "3.0.0"}))
    assert ready.opcode == Opcode.READY


@pytest.mark.parametrize("opcode", [Opcode.QUERY, Opcode.EXECUTE, Opcode.PREPARE, Opcode.BATCH, Opcode.REGISTER])
def test_nothing_is_carried_out_before_the_greeting(opcode: Opcode) -> None:
    parted = ConnectionRig()

    async def work(_: Wired) -> None:
        other = Wired(parted, asyncio.TaskGroup())
        (answer,) = other.ask(request(opcode, b"\0" * 20))
        assert error_of(answer)[0] == CqlCode.PROTOCOL_ERROR

    with_connection(work, parted)
    assert parted.execution.asked == []


async def test_a_second_startup_has_no_place(wired: Wired, /) -> None:
    (answer,) = wired.ask(request(Opcode.STARTUP, STARTUP_BODY))
    assert error_of(answer)[0] == CqlCode.PROTOCOL_ERROR


# ---- login


class SlowAuthentication:
    def __init__(self) -> None:
        self.decided: asyncio.Future[str] | None = None

    def future(self) -> "asyncio.Future[str]":
        assert self.decided is not None
        return self.decided

    async def authenticate(self, _token: bytes, _address: str) -> str:
        self.decided = asyncio.get_running_loop().create_future()
        return await self.decided


def test_who_logs_in_is_let_in_and_what_follows_waits_for_it() -> None:
    login = SlowAuthentication()
    parted = ConnectionRig(login=login.authenticate)

    async def work(wired: Wired) -> None:
        (asked,) = wired.ask(request(Opcode.STARTUP, STARTUP_BODY))
        assert BodyReader(asked.body).string() == PASSWORD_AUTHENTICATOR
        (refused,) = wired.ask(query("too early"))
        assert error_of(refused)[0] == CqlCode.PROTOCOL_ERROR
        assert wired.ask(request(Opcode.AUTH_RESPONSE, notation.value(b"x")), query("waits", stream=2)) == []
        assert not wired.transport.reads()
        await settled()
        login.future().set_result("scribe")
        await settled()
        success, answer = wired.transport.taken()
        assert (success.opcode, success.body) == (Opcode.AUTH_SUCCESS, notation.value(None))
        assert (answer.stream, answer.body) == (2, VOID)
        assert wired.transport.reads()
        assert wired.connection.client.user == "scribe"

    with_connection(work, parted)
    assert parted.execution.asked == ["waits"]


def test_who_cannot_prove_it_is_told_and_closed() -> None:
    login = SlowAuthentication()

    async def work(wired: Wired) -> None:
        wired.ask(request(Opcode.STARTUP, STARTUP_BODY))
        wired.ask(request(Opcode.AUTH_RESPONSE, notation.value(b"x")), query("never"))
        await settled()
        login.future().set_exception(BadCredentials("no"))
        await settled()
        (answer,) = wired.transport.taken()
        assert error_of(answer) == (CqlCode.BAD_CREDENTIALS, "no")
        assert wired.transport.closed is not None

    with_connection(work, ConnectionRig(login=login.authenticate))


def test_a_client_that_left_while_it_logged_in_is_not_let_in() -> None:
    login = SlowAuthentication()

    async def work(wired: Wired) -> None:
        wired.ask(request(Opcode.STARTUP, STARTUP_BODY))
        wired.ask(request(Opcode.AUTH_RESPONSE, notation.value(b"x")))
        await settled()
        wired.connection.lost()
        await settled()
        assert not wired.connection.is_ready

    with_connection(work, ConnectionRig(login=login.authenticate))


# ---- requests


async def test_an_answer_at_once_leaves_in_the_same_step(wired: Wired, /) -> None:
    answers = wired.ask(execute(stream=7), query("SELECT", stream=8))
    assert [(each.stream, each.opcode, each.body) for each in answers] == [
        (7, Opcode.RESULT, VOID),
        (8, Opcode.RESULT, VOID),
    ]


def test_answers_leave_in_the_order_in_which_requests_end() -> None:
    futures = Futures()
    parted = ConnectionRig(execution=futures.output())

    async def work(wired: Wired) -> None:
        assert wired.ask(execute(b"a", stream=1), execute(b"b", stream=2), execute(b"c", stream=3)) == []
        assert parted.load.bytes > 0
        for name in (b"c", b"a", b"b"):
            futures.made[name].set_result(None)
            await settled()
        assert [each.stream for each in wired.transport.taken()] == [3, 1, 2]
        assert parted.load.bytes == 0

    with_connection(work, parted)


def test_a_request_that_becomes_a_task() -> None:
    async def later() -> CqlResponse:
        await asyncio.sleep(0)
        return CqlResponse(Rows((ColumnSpec(keyspace="k", table="t", name="c", type=SCALARS["int"]),), [[b"\0\0\0\1"]]))

    async def work(wired: Wired) -> None:
        assert wired.ask(query("SELECT", stream=4)) == []
        await settled()
        (answer,) = wired.transport.taken()
        assert (answer.stream, answer.opcode) == (4, Opcode.RESULT)
        assert answer.body.endswith(struct.pack(">iii", 1, 4, 1))

    with_connection(work, ConnectionRig(execution=ScriptedExecutor(lambda _: later())))


def test_prepare_and_batch() -> None:
    parted = ConnectionRig()

    async def work(wired: Wired) -> None:
        (prepared,) = wired.ask(request(Opcode.PREPARE, long_string("stmt"), stream=1))
        (broken,) = wired.ask(request(Opcode.PREPARE, long_string(""), stream=2))
        batch = b"\0\0\1\0" + long_string("INSERT") + struct.pack(">HHB", 0, 4, 0)
        (batched,) = wired.ask(request(Opcode.BATCH, batch, stream=3))
        assert prepared.body[4:10] == notation.short_bytes(b"stmt")
        assert error_of(broken)[0] == CqlCode.SYNTAX_ERROR
        assert (batched.stream, batched.body) == (3, VOID)

    with_connection(work, parted)
    assert parted.execution.asked == ["INSERT"]


def test_an_error_tells_the_level_and_what_kind_of_write_it_was() -> None:
    def fails(_: str | bytes) -> StartedRequest:
        raise WriteTimeout("late", required=2, received=1)

    async def work(wired: Wired) -> None:
        (answer,) = wired.ask(execute(level=4))
        assert answer.body.endswith(struct.pack(">Hii", 4, 1, 2) + notation.string("SIMPLE"))
        (answer,) = wired.ask(request(Opcode.BATCH, b"\1\0\0" + struct.pack(">HB", 6, 0)))
        assert answer.body.endswith(struct.pack(">Hii", 6, 1, 2) + notation.string("UNLOGGED_BATCH"))

    with_connection(work, ConnectionRig(execution=ScriptedExecutor(fails)))


def test_a_write_that_fails_later_tells_so() -> None:
    futures = Futures()

    async def work(wired: Wired) -> None:
        wired.ask(execute(b"a", stream=9))
        futures.made[b"a"].set_exception(WriteTimeout("late", required=1))
        await settled()
        (answer,) = wired.transport.taken()
        assert (answer.stream, error_of(answer)[0]) == (9, CqlCode.WRITE_TIMEOUT)

    with_connection(work, ConnectionRig(execution=futures.output()))


def test_a_defect_is_told_by_a_number_and_its_trace_goes_to_the_log() -> None:
    def breaks(_: str | bytes) -> StartedRequest:
        raise KeyError("a secret of ours")

    async def later() -> CqlResponse:
        raise KeyError("a secret of ours")

    for begin in (breaks, lambda _: later()):
        parted = ConnectionRig(execution=ScriptedExecutor(begin))

        async def work(wired: Wired) -> None:
            answers = wired.ask(execute(stream=3))
            await settled()
            (answer,) = answers + wired.transport.taken()
            code, words = error_of(answer)
            assert code == CqlCode.SERVER_ERROR
            assert "beef" in words
            assert "secret" not in words
            assert wired.transport.closed is None

        with_connection(work, parted)
        ((event, details),) = parted.reports
        assert (event, details["id"]) == ("cql.internal_error", "beef")
        assert "a secret of ours" in str(details["trace"])


def test_errors_of_the_server_itself_reach_only_its_log() -> None:
    failed = ReadFailed("ONE read: 0 of 1 replicas answered", required=1)
    failed.add_note("shard 0 of host x: layer /data/7 is damaged")
    cases = [
        (Corruption("layer /data/7 is damaged"), CqlCode.WRITE_FAILURE),
        (DiskFull("/data is full"), CqlCode.WRITE_FAILURE),
        (InternalError("'i' format requires a number of /data"), CqlCode.SERVER_ERROR),
        (failed, CqlCode.READ_FAILURE),
    ]
    for error, expected in cases:

        def fails(*_: object, error: EblaError = error) -> StartedRequest:
            raise error

        parted = ConnectionRig(execution=ScriptedExecutor(fails))

        async def work(wired: Wired, expected: CqlCode = expected) -> None:
            (answer,) = wired.ask(execute(stream=3))
            code, words = error_of(answer)
            assert code == expected
            assert "beef" in words
            assert "/data" not in words

        with_connection(work, parted)
        ((event, details),) = parted.reports
        assert (event, details["id"]) == ("cql.request_failed", "beef")
        assert "/data" in str(details["cause"])


def test_a_shard_that_does_not_serve_says_so() -> None:
    def refuses() -> None:
        raise Unavailable("not now")

    parted = ConnectionRig(require_serving=refuses)

    async def work(wired: Wired) -> None:
        frames = [execute(), query("x"), request(Opcode.PREPARE, long_string("x")), request(Opcode.BATCH, b"\0" * 9)]
        for answer in wired.ask(*frames):
            assert error_of(answer) == (CqlCode.UNAVAILABLE, "not now")
        (supported,) = wired.ask(request(Opcode.OPTIONS))
        assert supported.opcode == Opcode.SUPPORTED

    with_connection(work, parted)
    assert parted.execution.asked == []


@pytest.mark.parametrize("opcode", [Opcode.READY, Opcode.RESULT, 0x77])
async def test_an_opcode_without_a_place_is_answered(wired: Wired, /, opcode: int) -> None:
    (answer,) = wired.ask(request(opcode))
    assert error_of(answer)[0] == CqlCode.PROTOCOL_ERROR
    assert wired.transport.closed is None


async def test_a_broken_frame_is_answered_and_ends_the_connection(wired: Wired, /) -> None:
    (answer,) = wired.ask(request(Opcode.QUERY, stream=5)[:5] + b"\x7f\xff\xff\xff")
    assert answer.stream == 5
    assert error_of(answer)[0] == CqlCode.PROTOCOL_ERROR
    assert wired.transport.closed is not None
    assert wired.ask(query("more")) == []


# ---- flags


def test_payload_warnings_and_compression() -> None:
    columns = (ColumnSpec(keyspace="k", table="t", name="c", type=SCALARS["text"]),)
    big = CqlResponse(Rows(columns, [[b"clay" * 500]]), ("slow",), {"tablets-routing-v1": b"\1"})
    parted = ConnectionRig(execution=ScriptedExecutor(lambda _: big))

    async def work(_: Wired) -> None:
        other = Wired(parted, asyncio.TaskGroup())
        other.ask(startup({"CQL_VERSION": "3.0.0", "COMPRESSION": "lz4"}))
        inner = notation.bytes_map({"extension": b"ours"}) + notation.short_bytes(b"id") + b"\0\1\0"
        flags = FrameFlag.CUSTOM_PAYLOAD | FrameFlag.TRACING | FrameFlag.COMPRESSED
        (answer,) = other.ask(request(Opcode.EXECUTE, LZ4.compress(inner), flags=flags))
        assert answer.flags == FrameFlag.COMPRESSED | FrameFlag.WARNING | FrameFlag.CUSTOM_PAYLOAD
        reader = BodyReader(LZ4.decompress(answer.body, 1 << 20))
        assert reader.string_list() == ["slow"]
        assert reader.bytes_map() == {"tablets-routing-v1": b"\1"}
        assert reader.integer() == 2
        (third,) = other.ask(request(Opcode.EXECUTE, b"\0\2id\0\1\0", version=3))
        assert third.flags == FrameFlag.COMPRESSED
        assert len(answer.body) < 500

    with_connection(work, parted)
    assert parted.execution.asked == [b"id", b"id"]


async def test_what_is_compressed_without_an_agreement_is_refused(wired: Wired, /) -> None:
    (answer,) = wired.ask(execute(flags=int(FrameFlag.COMPRESSED)))
    assert error_of(answer)[0] == CqlCode.PROTOCOL_ERROR


# ---- events


def test_events_go_to_those_who_asked_until_they_leave() -> None:
    parted = ConnectionRig()

    async def work(wired: Wired) -> None:
        (ready,) = wired.ask(request(Opcode.REGISTER, notation.string_list(["SCHEMA_CHANGE"])))
        assert ready.opcode == Opcode.READY
        (output,) = list(parted.events._subscribers[EventKind.SCHEMA_CHANGE])
        assert not parted.events._subscribers[EventKind.STATUS_CHANGE]
        output.push_event(b"news")
        (event,) = wired.transport.taken()
        assert (event.stream, event.opcode, event.body) == (EVENT_STREAM, Opcode.EVENT, b"news")
        (refused,) = wired.ask(request(Opcode.REGISTER, notation.string_list(["WEATHER"])))
        assert error_of(refused)[0] == CqlCode.PROTOCOL_ERROR
        wired.connection.lost()
        assert not parted.events._subscribers[EventKind.SCHEMA_CHANGE]

    with_connection(work, parted)
