"""One connection: its bounds, and how it is closed."""

import asyncio
import struct

from tests.async_tests import runs_in, settled
from tests.unit.cql.protocol_rig import (
    AT_ONCE,
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

from ebla.cql.executor import ClientState, StartedRequest
from ebla.model.error_codes import CqlCode
from ebla.model.errors import WriteTimeout
from ebla.options import NodeLimits
from ebla.wire.cql.frames import Opcode
from ebla.wire.cql.messages import CqlResponse, Void

VOID = struct.pack(">i", 1)


def test_with_too_many_under_way_nothing_more_is_read() -> None:
    futures = Futures()
    parted = ConnectionRig(execution=futures.output(), limits=NodeLimits(cql_requests_max=3))

    async def work(wired: Wired) -> None:
        frames = [execute(bytes([number]), stream=number) for number in range(10)]
        wired.ask(*frames)
        assert list(futures.made) == [bytes([number]) for number in range(3)]
        assert not wired.transport.reads()
        futures.made[b"\1"].set_result(None)
        await settled()
        assert list(futures.made)[-1] == b"\3"
        assert not wired.transport.reads()
        for number in range(10):
            if not futures.made[bytes([number])].done():
                futures.made[bytes([number])].set_result(None)
            await settled()
        assert wired.transport.reads()
        assert sorted(each.stream for each in wired.transport.taken()) == list(range(10))

    with_connection(work, parted)
    assert parted.load.bytes == 0


def test_large_requests_count_by_their_bytes() -> None:
    futures = Futures()
    parted = ConnectionRig(execution=futures.output(), bounds={"requests_bytes_max": 1000})

    async def work(wired: Wired) -> None:
        wired.ask(query("x" * 600, stream=1), query("y" * 600, stream=2), query("z", stream=3))
        assert len(futures.made) == 2
        assert not wired.transport.reads()
        futures.made["x" * 600].set_result(None)
        await settled()
        assert len(futures.made) == 3

    with_connection(work, parted)


def test_a_shard_with_too_much_under_way_says_that_it_is_overloaded() -> None:
    parted = ConnectionRig(limits=NodeLimits(shard_requests_bytes_max=10))
    parted.load.bytes = 11

    async def work(wired: Wired) -> None:
        parted.load.bytes = 11
        (answer,) = wired.ask(query("x"))
        assert error_of(answer)[0] == CqlCode.OVERLOADED
        parted.load.bytes = 0
        (answer,) = wired.ask(query("x"))
        assert answer.body == VOID

    parted.load.bytes = 0
    with_connection(work, parted)


def test_a_client_that_does_not_read_is_not_read_from_and_closed_in_the_end() -> None:
    futures = Futures()
    parted = ConnectionRig(execution=futures.output(), bounds={"unsent_bytes_max": 100})

    async def work(wired: Wired) -> None:
        wired.ask(execute(b"a"), execute(b"b"))
        wired.connection.writing_paused()
        assert not wired.transport.reads()
        wired.ask(execute(b"c"))
        assert b"c" not in futures.made
        wired.transport.queued_bytes = 100
        futures.made[b"a"].set_result(None)
        await settled()
        assert wired.transport.closed is None
        wired.transport.queued_bytes = 101
        futures.made[b"b"].set_result(None)
        await settled()
        assert wired.transport.closed is not None

    with_connection(work, parted)
    assert [event for event, _ in parted.reports] == ["cql.client_too_slow"]


def test_a_client_that_reads_again_is_read_from_again() -> None:
    parted = ConnectionRig()

    async def work(wired: Wired) -> None:
        wired.connection.writing_paused()
        assert wired.ask(execute(b"c")) == []
        wired.connection.writing_resumed()
        (answer,) = wired.transport.taken()
        assert answer.body == VOID
        assert wired.transport.reads()

    with_connection(work, parted)


@runs_in(with_connection, ConnectionRig(limits=NodeLimits(cql_statement_bytes_max=10)))
async def test_long_statements_are_refused_before_they_are_decoded(wired: Wired, /) -> None:
    not_text = b"\xff" * 11
    item = b"\0" + long_string("INSERT") + b"\0\0"
    for frame in (
        query("x" * 11),
        request(Opcode.QUERY, struct.pack(">i", len(not_text)) + not_text + b"\0\1\0"),
        request(Opcode.PREPARE, long_string("x" * 11)),
        request(Opcode.BATCH, b"\0\0\2" + item * 2 + struct.pack(">HB", 4, 0)),
    ):
        (answer,) = wired.ask(frame)
        code, words = error_of(answer)
        assert code == CqlCode.INVALID
        assert "limits.cql_statement_bytes_max (10)" in words
    (answer,) = wired.ask(query("x" * 10))
    assert answer.opcode == Opcode.RESULT


@runs_in(with_connection, ConnectionRig(bounds={"first_request_bytes_max": 1000}))
async def test_before_the_greeting_only_little_is_taken(wired: Wired, /) -> None:
    other = Wired(ConnectionRig(bounds={"first_request_bytes_max": 100}), asyncio.TaskGroup())
    (answer,) = other.ask(request(Opcode.STARTUP, b"\0" * 101))
    assert error_of(answer)[0] == CqlCode.PROTOCOL_ERROR
    assert other.transport.closed is not None
    wired.ask(query("x" * 70_000))


# ---- the end


def test_when_a_client_is_gone_nobody_waits_for_its_requests() -> None:
    futures = Futures()
    parted = ConnectionRig(execution=futures.output())

    async def work(wired: Wired) -> None:
        wired.ask(execute(b"a"), execute(b"b"))
        futures.made[b"a"].set_exception(WriteTimeout("late"))
        wired.connection.lost()
        await settled()
        assert futures.made[b"b"].cancelled()
        assert wired.transport.sent == b""

    with_connection(work, parted)
    assert parted.load.bytes == 0


def test_a_task_of_a_client_that_is_gone_ends() -> None:
    ended = asyncio.Event()

    async def long() -> CqlResponse:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return AT_ONCE

    async def work(wired: Wired) -> None:
        wired.ask(query("long"))
        await settled()
        wired.connection.lost()
        await ended.wait()

    with_connection(work, ConnectionRig(execution=ScriptedExecutor(lambda _: long())))


def test_it_ends_when_what_is_under_way_has_ended() -> None:
    futures = Futures()

    async def work(wired: Wired) -> None:
        wired.ask(execute(b"a", stream=5))
        wired.connection.end("the shard stops")
        assert not wired.transport.reads()
        assert wired.transport.closed is None
        futures.made[b"a"].set_result(None)
        await settled()
        assert [each.stream for each in wired.transport.taken()] == [5]
        assert wired.transport.closed == "the shard stops"

    with_connection(work, ConnectionRig(execution=futures.output()))


@runs_in(with_connection)
async def test_an_idle_one_ends_at_once(wired: Wired, /) -> None:
    wired.connection.end("the shard stops")
    assert wired.transport.closed == "the shard stops"


def test_a_write_given_up_by_the_shard_is_told_of() -> None:
    futures = Futures()

    async def work(wired: Wired) -> None:
        wired.ask(execute(b"a"))
        futures.made[b"a"].cancel()
        await settled()
        (answer,) = wired.transport.taken()
        code, text = error_of(answer)[:2]
        assert code == CqlCode.WRITE_TIMEOUT, "its outcome is unknown"
        assert "this shard is stopping" in text

    with_connection(work, ConnectionRig(execution=futures.output()))


def test_the_session_is_the_connections_own() -> None:
    sessions: list[ClientState] = []

    class Noting(ScriptedExecutor):
        def begin_query(self, session: ClientState, text: str, parameters: object) -> StartedRequest:
            sessions.append(session)
            session.keyspace = "ks"
            return CqlResponse(Void())

    async def work(wired: Wired) -> None:
        wired.ask(query("USE ks"))
        assert wired.connection.client.keyspace == "ks"
        assert sessions == [wired.connection.client]

    with_connection(work, ConnectionRig(execution=Noting()))
