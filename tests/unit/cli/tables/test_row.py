"""`ebla row`: rows written, read, scanned and deleted from a shell."""

import json

import pytest
from tests.unit.cli.table_shell import Shell

from ebla.model.errors import TooFewReplicas, WriteTimeout


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch) -> Shell:
    made = Shell(monkeypatch)
    made.ok("table", "create", "shop.orders", "id int PRIMARY KEY, total int, note text")
    return made


def test_what_was_put_is_got(shell: Shell) -> None:
    assert shell.ok("row", "put", "shop.orders", "id=1", "total=20", "note=it's new") == ""
    assert shell.lines("row", "get", "shop.orders", "id=1") == ["id  note      total", "1   it's new  20"]
    assert shell.json("row", "get", "shop.orders", "id=1") == {"id": 1, "note": "it's new", "total": 20}


def test_columns_that_are_not_named_keep_what_they_have(shell: Shell) -> None:
    shell.ok("row", "put", "shop.orders", "id=1", "total=20", "note=old")
    shell.ok("row", "put", "shop.orders", "id=1", "total=null")
    assert shell.json("row", "get", "shop.orders", "id=1") == {"id": 1, "note": "old", "total": None}
    assert shell.lines("row", "get", "shop.orders", "id=1")[1].split() == ["1", "old", "null"]


def test_a_row_that_is_not_there_is_no_output_and_status_1(shell: Shell) -> None:
    output = shell.run("row", "get", "shop.orders", "id=1")
    assert (output.exit_code, output.output) == (1, "")


def test_a_deleted_row_is_gone(shell: Shell) -> None:
    shell.ok("row", "put", "shop.orders", "id=1", "total=20")
    assert shell.json("row", "delete", "shop.orders", "id=1") == {"deleted": "shop.orders", "level": "QUORUM"}
    assert shell.run("row", "get", "shop.orders", "id=1").exit_code == 1


def test_a_scan_gives_every_row_or_so_many(shell: Shell) -> None:
    for number in range(5):
        shell.ok("row", "put", "shop.orders", f"id={number}", "total=1")
    found = [json.loads(line) for line in shell.lines("row", "scan", "shop.orders", "--json")]
    assert sorted(one["id"] for one in found) == list(range(5))
    assert len(shell.lines("row", "scan", "shop.orders", "--json", "--limit", "2")) == 2


def test_part_of_a_key_names_its_rows(shell: Shell) -> None:
    shell.ok("table", "create", "shop.items", "id int, at int, name text, PRIMARY KEY (id, at)")
    for at in (1, 2):
        shell.ok("row", "put", "shop.items", "id=7", f"at={at}", "name=x")
    assert len(shell.lines("row", "get", "shop.items", "id=7", "--json")) == 2
    assert len(shell.lines("row", "get", "shop.items", "id=7", "at=2", "--json")) == 1
    shell.ok("row", "delete", "shop.items", "id=7")
    assert shell.run("row", "get", "shop.items", "id=7").exit_code == 1


def test_the_level_is_passed_on(shell: Shell) -> None:
    shell.cluster.levels.clear()
    shell.ok("row", "put", "shop.orders", "id=1", "total=1", "--level", "all")
    shell.ok("row", "get", "shop.orders", "id=1", "--level", "LOCAL_ONE")
    shell.ok("row", "get", "shop.orders", "id=1")
    assert shell.cluster.levels == ["ALL", "LOCAL_ONE", "QUORUM"]
    output = shell.refused("row", "get", "shop.orders", "id=1", "--level", "most")
    assert output.startswith("ebla: 'most' is no consistency level; one of ONE, TWO, ")


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (("put", "shop.orders", "id"), "ebla: not applied: 'id' names no value; write it as COLUMN=VALUE\n"),
        (("put", "shop.orders", "id=1", "weight=2"), "ebla: not applied: table shop.orders has no column 'weight'\n"),
        (("get", "shop.none", "id=1"), "ebla: there is no table shop.none; see `ebla table list`\n"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_sent(shell: Shell, command: tuple[str, ...], words: str) -> None:
    shell.cluster.levels.clear()
    assert shell.refused("row", *command) == words
    assert shell.cluster.levels == []


@pytest.mark.parametrize("text", ["", "abc", "1)", "1, 2", "1; 2", "1 --", "(1", "'1", "?", ":x", "cast(1 as text)"])
def test_what_is_no_value_is_named_with_its_column_and_type(shell: Shell, text: str) -> None:
    shell.cluster.levels.clear()
    wrong = f"{text!r} is no value of column 'total' of type int\n"
    assert shell.refused("row", "put", "shop.orders", "id=1", f"total={text}") == f"ebla: not applied: {wrong}"
    assert shell.refused("row", "get", "shop.orders", f"total={text}") == f"ebla: {wrong}"
    assert shell.cluster.levels == []


def test_a_value_may_be_calculated(shell: Shell) -> None:
    shell.ok("row", "put", "shop.orders", "id=1", "total=-(2 + 3)")
    assert shell.json("row", "get", "shop.orders", "id=1")["total"] == -5


def test_a_write_that_failed_says_what_became_of_it(shell: Shell) -> None:
    shell.cluster.failing = TooFewReplicas("QUORUM needs 2 replicas and 1 of them are up", required=2, alive=1)
    output = shell.refused("row", "put", "shop.orders", "id=1", "total=1")
    assert output == "ebla: not applied: QUORUM needs 2 replicas and 1 of them are up\n"
    shell.cluster.failing = WriteTimeout("1 of 2 replicas acknowledged", required=2, received=1)
    output = shell.refused("row", "delete", "shop.orders", "id=1")
    assert output == "ebla: unknown whether it was applied: 1 of 2 replicas acknowledged\n"
    shown = json.loads(shell.run("row", "put", "shop.orders", "id=1", "total=1", "--json").stdout)
    assert (shown["error"], shown["outcome"]) == ("WriteTimeout", "unknown")
