"""CALL: passes one blob to a service of the node, and returns one."""

import asyncio
from collections.abc import Collection
from dataclasses import replace

import pytest
from tests.unit.cql.world import Cql

from ebla.cql.executor import ClientState
from ebla.cql.parse.parser import parse
from ebla.cql.parse.statements import CallStatement
from ebla.cql.parse.terms import BindMarker, Literal, LiteralKind
from ebla.model.errors import BadSyntax, InvalidRequest
from ebla.wire.cql.messages import QueryParameters, Rows


class Backwards:
    """Returns its argument reversed."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, bytes]] = []

    @property
    def names(self) -> Collection[str]:
        return ("backwards", "other")

    async def call(self, name: str, payload: bytes) -> bytes:
        self.asked.append((name, payload))
        return payload[::-1]


@pytest.fixture
def calls() -> Backwards:
    return Backwards()


@pytest.fixture
def cql(calls: Backwards) -> Cql:
    made = Cql()
    made.executor = replace(made.executor, calls=calls)
    return made


def test_a_literal_and_a_marker_are_parsed() -> None:
    assert parse("CALL ebla.open_read(0xCAfe)").statement == CallStatement(
        "ebla", "open_read", Literal(LiteralKind.HEX, "CAfe")
    )
    assert parse("call Ebla.Open_Read ( ? );").statement == CallStatement("ebla", "open_read", BindMarker(0))
    assert parse("CALL ebla.x(:request)").markers == (BindMarker(0, "request"),)


@pytest.mark.parametrize("text", ["CALL x(0x)", "CALL ebla.x()", "CALL ebla.x(0x00, 0x01)", "CALL ebla.x(0x00", "CALL"])
def test_anything_else_is_no_call(text: str) -> None:
    with pytest.raises(BadSyntax):
        parse(text)


def test_a_query_is_answered_with_one_row(cql: Cql, calls: Backwards) -> None:
    found = cql.found("CALL ebla.backwards(0x0102ff)")
    assert [(one.keyspace, one.table, one.name, str(one.type)) for one in found.columns] == [
        ("ebla", "backwards", "answer", "blob")
    ]
    assert cql.rows("CALL ebla.backwards(0x0102ff)") == [(b"\xff\x02\x01",)]
    assert cql.rows("CALL ebla.other(?)", b"ab") == [(b"ba",)]
    assert calls.asked[-1] == ("other", b"ab")


def test_it_can_be_prepared(cql: Cql, calls: Backwards) -> None:
    prepared = cql.executor.prepare(cql.session, "CALL ebla.backwards(?)")
    assert [(one.name, str(one.type)) for one in prepared.variables] == [("request", "blob")]
    assert [one.name for one in prepared.columns] == ["answer"]
    for value in (b"12", b""):
        parameters = QueryParameters(values=(value,))
        answer = cql.finish(lambda: cql.executor.begin_execute(cql.session, prepared.id, parameters))  # noqa: B023  # run at once
        assert isinstance(answer.result, Rows)
        assert list(answer.result.rows) == [(value[::-1],)]
    assert calls.asked == [("backwards", b"12"), ("backwards", b"")]


@pytest.mark.parametrize("text", ["CALL ebla.nothing(0x00)", "CALL ks.backwards(0x00)"])
def test_an_unknown_name_is_told_with_those_that_are_there(cql: Cql, calls: Backwards, text: str) -> None:
    with pytest.raises(InvalidRequest, match="there is nothing to call") as caught:
        cql.run(text)
    assert "ebla.backwards, ebla.other" in caught.value.advice
    assert calls.asked == []


def test_a_node_without_calls_says_so() -> None:
    with pytest.raises(InvalidRequest) as caught:
        Cql().run("CALL ebla.backwards(0x00)")
    assert "none on this node" in caught.value.advice


@pytest.mark.parametrize(("text", "values"), [("CALL ebla.other(null)", ()), ("CALL ebla.other(?)", (None,))])
def test_nothing_is_no_blob(cql: Cql, text: str, values: tuple[None, ...]) -> None:
    with pytest.raises(InvalidRequest, match="not null"):
        cql.run(text, *values)
    with pytest.raises(InvalidRequest, match="blob"):
        cql.run("CALL ebla.other(1)")


def test_it_is_carried_out_in_a_task_of_its_own(cql: Cql) -> None:
    """Otherwise the connection could do nothing else until it ends."""
    started = cql.executor.begin_query(ClientState(peer="test"), "CALL ebla.other(0x00)", QueryParameters())
    assert asyncio.iscoroutine(started)
    started.close()


def test_its_text_is_not_kept(cql: Cql) -> None:
    cql.run("CALL ebla.other(0x00)")
    assert len(cql.executor._statements._compiled) == 0  # what is kept cannot be seen from outside
