"""The commands for tables and rows against a real node, over its sockets."""

import json
import os
import signal
from collections.abc import Callable
from typing import Any

from prometheus_client.parser import text_string_to_metric_families
from tests.cluster.conftest import LocalNodes, eventually
from typer.testing import CliRunner, Result

from ebla.cli.app import app

Make = Callable[..., LocalNodes]


def ebla(nodes: LocalNodes, *arguments: str) -> Result:
    return CliRunner().invoke(app, [*arguments, "--data", str(nodes.data)])


def json_of(nodes: LocalNodes, *arguments: str) -> Any:
    result = ebla(nodes, *arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_a_first_look_at_tables_and_rows(make_nodes: Make) -> None:
    nodes = make_nodes(shards=2)
    nodes.start_all()
    json_of(nodes, "table", "create", "shop.orders", "id int PRIMARY KEY, total int", "--tablets", "4")
    for number in range(8):
        json_of(nodes, "row", "put", "shop.orders", f"id={number}", f"total={10 * number}")
    assert json_of(nodes, "row", "get", "shop.orders", "id=3") == {"id": 3, "total": 30}
    json_of(nodes, "row", "delete", "shop.orders", "id=3")
    assert ebla(nodes, "row", "get", "shop.orders", "id=3").exit_code == 1
    scanned = ebla(nodes, "row", "scan", "shop.orders", "--json").stdout.splitlines()
    assert sorted(json.loads(line)["id"] for line in scanned) == [0, 1, 2, 4, 5, 6, 7]
    (host,) = json_of(nodes, "ring")
    assert (host["shards"], host["tablets"]) == (2, 4)
    address = nodes.nodes[0].options.control_address.host
    places = [one["replicas"] for one in json_of(nodes, "tablets", "shop.orders")]
    assert sorted(places) == [[f"{address}/0"], [f"{address}/0"], [f"{address}/1"], [f"{address}/1"]]
    _check_metrics(nodes)
    json_of(nodes, "table", "drop", "shop.orders")
    assert json_of(nodes, "table", "list") == []
    refused = ebla(nodes, "row", "get", "shop.orders", "id=1")
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert refused.stderr == "ebla: there is no table shop.orders; see `ebla table list`\n"


def _check_metrics(nodes: LocalNodes) -> None:
    """The shards routed all writes between them, and both have rows."""
    result = ebla(nodes, "metrics")
    assert result.exit_code == 0, result.output
    samples = [each for family in text_string_to_metric_families(result.stdout) for each in family.samples]
    routed = {each.labels["shard"]: each.value for each in samples if each.name == "ebla_router_writes_total"}
    assert sum(routed.values()) == 9
    written = {each.labels["shard"]: each.value for each in samples if each.name == "ebla_replica_writes_total"}
    assert sum(written.values()) == 9
    assert all(written.values())
    os.kill(nodes.pid("shard-1"), signal.SIGSTOP)
    silent = ebla(nodes, "metrics")
    assert silent.exit_code == 1
    assert silent.stderr.startswith("ebla: shard 1 of node1: "), "one that does not answer is named"
    assert 'shard="0"' in silent.stdout, "the others are still reported"
    eventually(lambda: ebla(nodes, "metrics").exit_code == 0, "its control has killed it, and another one is there")
