"""`ebla metrics`: errors, and JSON output."""

from pathlib import Path

from typer.testing import CliRunner

from ebla.cli.app import app
from ebla.cli.cluster.local_cluster import NewClusterSpec, assign_identities, find_or_create_nodes
from ebla.cli.cluster.metrics import bulk_metrics, metrics_json
from ebla.observe.metrics import Metrics
from ebla.wire.metrics_messages import collect_metrics
from ebla.wire.transfer_messages import BulkStatusAnswer


def test_numbers_for_programs_say_where_they_are_from() -> None:
    metrics = Metrics()
    metrics.counter("writes_total", "Writes.", labels=("end",)).series("done").add(2)
    metrics.histogram("write_seconds", "How long.", bounds=(0.1,)).series().observe(0.5)
    assert metrics_json([(("node2", "1"), collect_metrics(metrics))]) == [
        {"name": "writes_total", "kind": "counter", "node": "node2", "shard": 1, "labels": {"end": "done"}, "value": 2},
        {
            "name": "write_seconds",
            "kind": "histogram",
            "node": "node2",
            "shard": 1,
            "labels": {},
            "value": 0.5,
            "count": 1,
            "bounds": (0.1,),
            "counts": (0, 1),
        },
    ]


def test_nodes_that_do_not_run_have_nothing_to_tell(tmp_path: Path) -> None:
    nodes = find_or_create_nodes(
        tmp_path / "d", NewClusterSpec(nodes=1, shards=2, base_address="127.0.0.1", cluster_name="ebla")
    )
    assign_identities(nodes)
    result = CliRunner().invoke(app, ["metrics", "--data", str(tmp_path / "d")])
    assert result.exit_code == 1
    assert result.stderr == f"ebla: no node of {tmp_path / 'd'} runs; see `ebla status`; `ebla up` starts a cluster\n"
    result = CliRunner().invoke(app, ["metrics", "--data", str(tmp_path / "d"), "--node", "node9"])
    assert result.stderr.startswith("ebla: there is no node 'node9' in ")
    result = CliRunner().invoke(app, ["metrics", "--data", str(tmp_path / "d"), "--node", "node1"])
    assert (result.exit_code, result.stdout) == (1, "")
    assert [line.split(":")[1] for line in result.stderr.splitlines()] == [
        " shard 0 of node1",
        " shard 1 of node1",
        " bulk process of node1",
    ]


def test_what_bulk_refused_is_of_a_node_and_of_no_shard() -> None:
    result = metrics_json([(("node2", ""), bulk_metrics(BulkStatusAnswer(refused_closed_session=3, received_bytes=7)))])
    found = {(one["name"], *one["labels"].values()): one["value"] for one in result}
    assert found["bulk_refused_total", "session"] == 3
    assert found["bulk_refused_total", "ticket"] == 0
    assert found["bulk_bytes_total", "in"] == 7
    assert {(one["node"], one["shard"]) for one in result} == {("node2", None)}
