"""`ebla metrics`: errors, and JSON output."""

import uuid
from pathlib import Path

from typer.testing import CliRunner

from ebla.cli.app import app
from ebla.cli.cluster.local_cluster import NewClusterSpec, assign_identities, find_or_create_nodes
from ebla.cli.cluster.metrics import bulk_metrics, metrics_json, peer_metrics
from ebla.model.identity import HostId
from ebla.observe.metrics import Metrics
from ebla.wire.metrics_messages import collect_metrics
from ebla.wire.transfer_messages import BulkStatusAnswer
from ebla.wire.verbs import PeerStatus, StatusAnswer


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
        " control process of node1",
    ]


def test_the_clock_of_each_peer_is_a_metric() -> None:
    def peer(address: str, offset_ms: int | None) -> PeerStatus:
        return PeerStatus(host=None, address=address, up=True, clock_offset_ms=offset_ms)

    status = StatusAnswer(
        host=HostId(uuid.UUID(int=1)),
        cluster=None,
        cluster_name="ebla",
        address="127.0.0.1:7000",
        started_wall_us=0,
        peers=(peer("127.0.0.2:7000", -5), peer("127.0.0.3:7000", 3_600_000), peer("127.0.0.4:7000", None)),
    )
    result = metrics_json([(("node1", ""), peer_metrics(status))])
    found = {(one["name"], one["labels"]["peer"]): one["value"] for one in result}
    assert found == {
        ("peer_clock_offset_ms", "127.0.0.2:7000"): -5,
        ("peer_clock_offset_ms", "127.0.0.3:7000"): 3_600_000,
    }


def test_what_bulk_refused_is_of_a_node_and_of_no_shard() -> None:
    result = metrics_json([(("node2", ""), bulk_metrics(BulkStatusAnswer(refused_closed_session=3, received_bytes=7)))])
    found = {(one["name"], *one["labels"].values()): one["value"] for one in result}
    assert found["bulk_refused_total", "session"] == 3
    assert found["bulk_refused_total", "ticket"] == 0
    assert found["bulk_bytes_total", "in"] == 7
    assert {(one["node"], one["shard"]) for one in result} == {("node2", None)}
