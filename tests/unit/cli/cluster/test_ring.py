"""`ebla ring` and `ebla tablets`: which node holds which ranges."""

import pytest
from tests.unit.cli.table_shell import Shell

from ebla.cli.cluster.ring import TABLETS_SHOWN_MAX
from ebla.model.token import TOKEN_MAX


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch) -> Shell:
    made = Shell(monkeypatch)
    made.ok("table", "create", "shop.orders", "id int PRIMARY KEY", "--rf", "2", "--tablets", "8")
    return made


def test_every_node_with_what_it_holds(shell: Shell) -> None:
    nodes = shell.json("ring")
    members = list(shell.cluster.snapshot.members())
    assert {one["host"] for one in nodes} == {str(node.host) for node in members}
    assert sum(one["tablets"] for one in nodes) == 8 * 2, "a tablet is held twice"
    assert {one["state"] for one in nodes} == {"normal"}
    output = shell.lines("ring")
    assert len(output) == 1 + len(nodes)
    assert all(one["host"] in line for one, line in zip(nodes, output[1:])), "nothing is cut where there is no terminal"


def test_ranges_of_a_table_cover_the_ring_as_often_as_it_has_copies(shell: Shell) -> None:
    shell.ok("table", "create", "ring.t", "id int PRIMARY KEY", "--rf", "2", "--vnodes")
    for name in ("shop.orders", "ring.t"):
        ranges = shell.json("ring", name)
        assert all(set(one) == {"after", "up_to", "address", "host"} for one in ranges)
        assert sum((one["up_to"] - one["after"]) % (1 << 64) or 1 << 64 for one in ranges) in (
            2 * ((1 << 64) - 1),
            2 << 64,
        )


def test_tablets_in_token_order_with_their_replicas(shell: Shell) -> None:
    tablets = shell.json("tablets", "shop.orders")
    assert [one["tablet"] for one in tablets] == list(range(8))
    assert [one["from"] for one in tablets[1:]] == [one["to"] for one in tablets[:-1]]
    assert tablets[-1]["to"] == TOKEN_MAX
    assert all(isinstance(one["replicas"], list) and len(one["replicas"]) == 2 for one in tablets)
    assert {one["stage"] for one in tablets} == {None}
    output = shell.lines("tablets", "shop.orders")
    assert [line.split()[3:5] for line in output[1:]] == [one["replicas"] for one in tablets]


def test_many_tablets_are_cut_for_people_alone(shell: Shell) -> None:
    shell.ok("table", "create", "shop.many", "id int PRIMARY KEY", "--tablets", "128")
    assert len(shell.json("tablets", "shop.many")) == 128
    output = shell.lines("tablets", "shop.many")
    assert len(output) == 1 + TABLETS_SHOWN_MAX + 1
    assert output[-1] == "64 more; --all shows them"
    assert len(shell.lines("tablets", "shop.many", "--all")) == 1 + 128


def test_vnodes_have_no_tablets(shell: Shell) -> None:
    shell.ok("table", "create", "ring.t", "id int PRIMARY KEY", "--vnodes")
    output = shell.refused("tablets", "ring.t")
    assert output == "ebla: ring.t is on vnodes and has no tablets; see `ebla ring ring.t`\n"
