"""`ebla table`: create, list, describe, drop; as text and as JSON."""

import json

import pytest
from tests.unit.cli.table_shell import Shell

from ebla.model.schema import decode_schema


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch) -> Shell:
    return Shell(monkeypatch)


ORDERS = ("table", "create", "shop.orders", "id int PRIMARY KEY, total int")


def test_a_table_is_created_with_its_keyspace(shell: Shell) -> None:
    assert shell.ok(*ORDERS) == "created shop.orders\n"
    snapshot = shell.cluster.snapshot
    assert snapshot.keyspaces["shop"].replication.total == 3, "as many copies as there are nodes, three at most"
    found = snapshot.table_named("shop", "orders")
    assert found is not None
    assert [column.name for column in decode_schema(found.definition).columns] == ["id", "total"]
    assert shell.json("table", "create", "shop.more", "id int PRIMARY KEY")["table"] == "shop.more"


def test_copies_tablets_and_vnodes_are_as_asked(shell: Shell) -> None:
    shell.ok(*ORDERS, "--rf", "2", "--tablets", "4")
    shell.ok("table", "create", "ring.t", "id int PRIMARY KEY", "--rf", "1", "--vnodes")
    listed = {one["table"]: one for one in shell.json("table", "list")}
    assert (listed["shop.orders"]["copies"], listed["shop.orders"]["tablets"]) == (2, 4)
    assert (listed["ring.t"]["copies"], listed["ring.t"]["tablets"]) == (1, None)
    names, ring, shop = shell.lines("table", "list")
    assert names.split() == ["table", "id", "copies", "tablets"]
    assert ring.split() == ["ring.t", listed["ring.t"]["id"], "1", "vnodes"]
    assert shop.split() == ["shop.orders", listed["shop.orders"]["id"], "2", "4"]


def test_a_small_cluster_has_fewer_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    shell = Shell(monkeypatch, nodes=2)
    shell.ok(*ORDERS)
    assert shell.cluster.snapshot.keyspaces["shop"].replication.total == 2


def test_no_tables_yet_comes_with_what_to_do(shell: Shell) -> None:
    assert shell.ok("table", "list").startswith("no tables yet; as in: ebla table create ")
    assert shell.json("table", "list") == []


def test_a_description_creates_the_same_table(shell: Shell) -> None:
    shell.ok("table", "create", "shop.items", "id int, at timeuuid, name text, PRIMARY KEY (id, at)")
    output = shell.ok("table", "describe", "shop.items")
    assert output.startswith("CREATE KEYSPACE shop WITH")
    assert "CREATE TABLE shop.items (" in output
    assert "PRIMARY KEY (id, at)" in output
    columns = shell.json("table", "describe", "shop.items")["columns"]
    assert [(one["name"], one["type"], one["kind"]) for one in columns] == [
        ("id", "int", "partition_key"),
        ("at", "timeuuid", "clustering"),
        ("name", "text", "regular"),
    ]


def test_a_dropped_table_is_gone(shell: Shell) -> None:
    shell.ok(*ORDERS)
    assert shell.ok("table", "drop", "shop.orders") == "dropped shop.orders\n"
    assert shell.cluster.snapshot.table_named("shop", "orders") is None
    assert shell.refused("table", "drop", "shop.orders").startswith("ebla: not applied: ")
    assert shell.json("table", "drop", "shop.orders", "--if-exists") == {"dropped": "shop.orders"}


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (("describe", "shop.none"), "ebla: there is no table shop.none; see `ebla table list`\n"),
        (("describe", "orders"), "ebla: 'orders' is no table's name; write it as KEYSPACE.TABLE\n"),
        (("create", "shop.", "id int PRIMARY KEY"), "ebla: not applied: 'shop.' is no table's name; "),
        (("create", "shop.orders", "id int"), "ebla: not applied: "),
    ],
)
def test_what_is_wrong_is_said_in_one_line(shell: Shell, command: tuple[str, ...], words: str) -> None:
    output = shell.refused("table", *command)
    assert output.startswith(words)
    assert output.count("\n") == 1


def test_options_of_a_keyspace_that_exists_are_refused(shell: Shell) -> None:
    shell.ok(*ORDERS)
    output = shell.refused("table", "create", "shop.more", "id int PRIMARY KEY", "--rf", "1")
    assert output == "ebla: not applied: keyspace shop exists already; leave out --rf and --vnodes\n"


def test_a_refusal_for_programs_has_its_outcome(shell: Shell) -> None:
    shell.ok(*ORDERS)
    output = shell.run(*ORDERS, "--json")
    assert (output.exit_code, output.stderr) == (1, "")
    shown = json.loads(output.stdout)
    assert (shown["error"], shown["outcome"]) == ("AlreadyExists", "not_applied")
