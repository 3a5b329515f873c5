"""Values of every type as text and as JSON."""

import json
import uuid
from decimal import Decimal
from ipaddress import IPv4Address
from typing import Any

import pytest

from ebla.cli.output import print_table
from ebla.cli.tables.row import plain, print_rows
from ebla.cql.system_tables.table_definition import declared
from ebla.model.cql_types import parse_type
from ebla.model.values import Duration, encode
from ebla.source.cql_client import CqlRows

ID = uuid.UUID("12345678-1234-5678-1234-567812345678")


@pytest.mark.parametrize(
    ("kind", "value", "shown"),
    [
        ("int", -3, -3),
        ("text", "é", "é"),
        ("boolean", True, True),
        ("blob", b"\0\xff", "0x00ff"),
        ("uuid", ID, str(ID)),
        ("decimal", Decimal("1.50"), "1.50"),
        ("inet", IPv4Address("127.0.0.1"), "127.0.0.1"),
        ("duration", Duration(1, 2, 3), "1mo2d3ns"),
        ("list<int>", [1, 2], [1, 2]),
        ("map<uuid, blob>", {ID: b"\1"}, {str(ID): "0x01"}),
    ],
)
def test_every_value_is_what_json_can_hold(kind: str, value: Any, shown: Any) -> None:
    type_ = parse_type(kind)
    found = plain(type_, encode(type_, value))
    assert found == shown
    assert json.loads(json.dumps(found)) == shown


SCHEMA = declared("CREATE TABLE ks.t (id int PRIMARY KEY, note text)")


def page_of(*rows: tuple[int | None, str | None]) -> CqlRows:
    stored = tuple(
        (None if number is None else number.to_bytes(4), None if note is None else note.encode())
        for number, note in rows
    )
    return CqlRows(("id", "note"), stored)


def test_rows_for_programs_are_one_object_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    print_rows(SCHEMA, page_of((1, "a"), (2, None)), as_json=True)
    printed = capsys.readouterr().out.splitlines()
    assert [json.loads(line) for line in printed] == [{"id": 1, "note": "a"}, {"id": 2, "note": None}]


def test_rows_for_people_are_columns_and_nothing_is_cut(capsys: pytest.CaptureFixture[str]) -> None:
    long = "x" * 500
    print_rows(SCHEMA, page_of((1, long), (22, "two\nlines"), (3, None)), as_json=False)
    assert capsys.readouterr().out.splitlines() == ["id  note", f"1   {long}", "22  two\\nlines", "3   null"]


def test_no_rows_are_no_output(capsys: pytest.CaptureFixture[str]) -> None:
    print_rows(SCHEMA, page_of(), as_json=False)
    print_rows(SCHEMA, page_of(), as_json=True)
    assert capsys.readouterr().out == ""


def test_a_terminal_that_is_narrow_shows_all_of_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("COLUMNS", "30")
    print_table(["name"], [["[bold]" + "y" * 60]])
    printed = capsys.readouterr().out
    assert printed.count("y") == 60
    assert "[bold]" in printed, "values are not taken for markup"


def test_a_narrow_terminal_leaves_out_what_is_less_important(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("COLUMNS", "80")
    names, rows = ("address", "host", "state", "note"), [["127.0.0.1:7000", str(ID), "normal", "some words " * 8]]
    print_table(names, rows, less_important=("host",))
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].split() == ["address", "state", "note"]
    assert printed[1].startswith("127.0.0.1:7000  normal  some words")
    assert printed[2].startswith(" " * 24 + "some words")
    print_table(names, rows)
    assert str(ID) in capsys.readouterr().out, "nothing is left out that was not named"
