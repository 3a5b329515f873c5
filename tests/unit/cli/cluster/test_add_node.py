"""`ebla add-node`: which folder, address and options a new node gets, and what is printed about its join."""

import json
import random
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from tests.unit.client.topology_reports import HOSTS, ended, joining
from typer.testing import CliRunner, Result

from ebla.cli.app import app
from ebla.cli.cluster import add_node, topology_reports
from ebla.cli.cluster.local_cluster import (
    AddedNodesSpec,
    LocalNode,
    NewClusterSpec,
    add_nodes,
    assign_identities,
    find_nodes,
    find_or_create_nodes,
    plan_new_nodes,
)
from ebla.cli.cluster.requests import RequestFlags
from ebla.model.errors import EblaError, InvalidRequest, Unavailable
from ebla.model.identity import HostId
from ebla.options import OptionsError, with_overrides
from ebla.topology.snapshot import Snapshot
from ebla.topology.states import RequestOutcome
from ebla.wire.topology_messages import TopologyReport


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Three nodes with options that a new node must share."""
    base = f"127.{random.randrange(20, 250)}.{random.randrange(0, 250)}.1"
    overrides = ("ports.control=7400", "limits.free_disk_bytes_min=0")
    shape = NewClusterSpec(nodes=3, shards=2, base_address=base, cluster_name="shop", overrides=overrides)
    assign_identities(find_or_create_nodes(tmp_path / "d", shape))
    return tmp_path / "d"


def prefix(data: Path) -> str:
    return find_nodes(data)[0].options.address.rpartition(".")[0]


def test_a_new_node_gets_the_next_number_and_address_and_the_options_of_the_first(data: Path) -> None:
    (made,) = add_nodes(data, AddedNodesSpec(count=1, overrides=("num_tokens=32",)), ())
    first = find_nodes(data)[0].options
    assert (made.name, made.options.address) == ("node4", f"{prefix(data)}.4")
    assert (made.options.ports, made.options.cluster_name, made.options.shards) == (first.ports, "shop", 2)
    assert (made.options.rack, made.options.datacenter, made.options.num_tokens) == ("rack4", "dc1", 32)
    assert made.options.peers == (*first.peers, made.options.address)
    identities = [node.folder.read_identity() for node in find_nodes(data)]
    assert len({one.host for one in identities if one}) == 4
    assert len({one.cluster for one in identities if one}) == 1
    assert made.folder.path == data / "node4", "and not the folder of the first"


def test_several_nodes_skip_addresses_in_use(data: Path) -> None:
    spec = AddedNodesSpec(count=2, datacenter="dc2", rack="r9", shards=1)
    planned = plan_new_nodes(data, find_nodes(data), spec, [f"{prefix(data)}.5"])
    assert [(folder.name, chosen.address) for folder, chosen in planned] == [
        ("node4", f"{prefix(data)}.4"),
        ("node5", f"{prefix(data)}.6"),
    ]
    assert {(chosen.datacenter, chosen.rack, chosen.shards) for _, chosen in planned} == {("dc2", "r9", 1)}


def test_wrong_options_and_folders_leave_nothing(data: Path) -> None:
    with pytest.raises(OptionsError):
        add_nodes(data, AddedNodesSpec(count=1, overrides=("num_tokens=0",)), ())
    with pytest.raises(InvalidRequest):
        add_nodes(data / "node1", AddedNodesSpec(count=1), ())
    with pytest.raises(EblaError, match="is not an address of this machine"):
        add_nodes(data, AddedNodesSpec(count=1, overrides=("address=192.0.2.1",)), ())
    assert [node.name for node in find_nodes(data)] == ["node1", "node2", "node3"]
    assert not (data / "node4").exists()


# ---- the command


class Process:
    def __init__(self) -> None:
        self.status: int | None = None

    def poll(self) -> int | None:
        return self.status


class Cluster:
    """Gives reports about the join of the node that was added."""

    def __init__(self) -> None:
        self.reports: list[TopologyReport | EblaError] = []
        self.process = Process()
        self.overrides: Sequence[str] = ()
        """Of the start of the new node."""
        self.host: HostId | None = None

    def start(self, node: LocalNode, overrides: Sequence[str]) -> Process:
        self.overrides = overrides
        identity = node.folder.read_identity()
        assert identity is not None
        self.host = identity.host
        return self.process

    async def fetch(self, _data: Path, _node: str | None) -> TopologyReport:
        report = self.reports.pop(0) if len(self.reports) > 1 else self.reports[0]
        if isinstance(report, EblaError):
            raise report
        return self._about_new_node(report)

    def _about_new_node(self, report: TopologyReport) -> TopologyReport:
        host = report.nodes[3].host if self.host is None else self.host
        rows = tuple(
            msgspec.structs.replace(one, host=host) if place == 3 else one for place, one in enumerate(report.nodes)
        )
        first = [
            msgspec.structs.replace(one, request=msgspec.structs.replace(one.request, host=host))
            for one in report.open[:1]
        ]
        over = [msgspec.structs.replace(one, host=host) for one in report.ended] if not report.open else report.ended
        return msgspec.structs.replace(report, nodes=rows, open=(*first, *report.open[1:]), ended=tuple(over))


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    one = Cluster()
    monkeypatch.setattr(add_node, "fetch_report", one.fetch)
    monkeypatch.setattr(add_node, "start", one.start)
    monkeypatch.setattr(add_node, "choose_nodes", lambda _data, _name: ["node1"])
    monkeypatch.setattr(topology_reports, "POLL_S", 0.001)
    monkeypatch.setattr(add_node, "END_S", 0.0)
    return one


def run(data: Path, *arguments: str) -> Result:
    return CliRunner().invoke(app, ["add-node", "--data", str(data), *arguments])


def test_a_join_is_followed_to_its_end(cluster: Cluster, data: Path) -> None:
    before = msgspec.structs.replace(joining(), open=(), ended=())
    cluster.reports = [before, before, joining(), joining(moved=8_000_000), ended(RequestOutcome.DONE)]
    done = run(data)
    assert done.exit_code == 0, done.output
    label = f"node4 {prefix(data)}.4"
    assert done.stdout.startswith(f"{label} is normal after ")
    assert done.stdout.endswith(" s (8 MB, 2 ranges)\n")
    assert done.stderr.splitlines() == [
        f"{label}: starts",
        f"{label}: bootstrapping, write_both_read_old",
        f"{label}: done",
    ]


def test_the_final_object_for_programs(cluster: Cluster, data: Path) -> None:
    cluster.reports = [joining(), ended(RequestOutcome.DONE)]
    shown = json.loads(run(data, "--json").stdout)
    assert (shown["node"], shown["outcome"], shown["error"]) == ("node4", "done", "")
    assert {"request", "bytes", "ranges", "seconds"} <= shown.keys()


def test_a_join_that_fails_says_why_and_what_to_do(cluster: Cluster, data: Path) -> None:
    cluster.reports = [joining(), ended(RequestOutcome.FAILED, "cancelled: node3 is down")]
    failed = run(data)
    assert failed.exit_code == 1
    assert "did not join: cancelled: node3 is down" in failed.stderr
    assert f"ebla reset-node {data / 'node4'}" in failed.stderr


def test_a_node_that_ends_before_its_request_is_told_with_its_reason(cluster: Cluster, data: Path) -> None:
    cluster.reports = [msgspec.structs.replace(joining(), open=(), ended=())]
    cluster.process.status = 1
    failed = run(data)
    assert failed.exit_code == 1
    assert "did not join: its process ended with status 1: see " in failed.stderr
    shown = json.loads(run(data, "--json").stdout)
    assert (shown["request"], shown["outcome"]) == (None, "failed")


def test_detached_joins_print_the_ids_of_their_requests(cluster: Cluster, data: Path) -> None:
    cluster.reports = [joining()]
    made = run(data, "--detach")
    assert (made.exit_code, made.stdout) == (0, f"{joining().open[0].request.id}  node4 {prefix(data)}.4\n")


def test_without_a_cluster_nothing_is_made(cluster: Cluster, data: Path) -> None:
    cluster.reports = [Unavailable("no node answers")]
    assert run(data).exit_code == 1
    assert run(data, "--count", "0").exit_code == 2
    assert not (data / "node4").exists()


def test_a_node_that_replaces_another_one_has_its_place_and_starts_with_its_id(
    cluster: Cluster, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = {"node3": HOSTS[2], "node2": HOSTS[1], HOSTS[1].hex: HOSTS[1]}
    monkeypatch.setattr(add_node, "resolve_host", lambda _flags, text: named[text])
    monkeypatch.setattr(RequestFlags, "snapshot", lambda _flags: Snapshot())
    cluster.reports = [joining(), joining(), ended(RequestOutcome.DONE)]
    done = run(data, "--replace", "node3", "--ignore-dead", "node2", "--ignore-dead", HOSTS[1].hex)
    assert done.exit_code == 0, done.output
    made = find_nodes(data)[-1].options
    assert (made.datacenter, made.rack, made.replace) == ("dc1", "r1", ""), "later starts replace nothing"
    assert list(cluster.overrides) == [f'replace="{HOSTS[2]}"', f'ignore_dead=["{HOSTS[1]}"]']
    started = with_overrides(made, cluster.overrides, "flags")
    assert (started.replace, started.ignore_dead) == (str(HOSTS[2]), (str(HOSTS[1]),))


def test_tablets_that_stay_on_the_replaced_node_are_counted(
    cluster: Cluster, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tablets = SimpleNamespace(tablets_on=lambda host: iter(range(3 if host == HOSTS[2] else 0)))
    monkeypatch.setattr(add_node, "resolve_host", lambda _flags, _text: HOSTS[2])
    monkeypatch.setattr(RequestFlags, "snapshot", lambda _flags: SimpleNamespace(tablets={"a": tablets, "b": tablets}))
    cluster.reports = [joining(), ended(RequestOutcome.DONE)]
    done = run(data, "--replace", "node3")
    assert "! 6 tablet replicas stay on 127.0.0.3, which has left" in done.stderr


def test_what_a_replacement_could_not_move_is_printed(
    cluster: Cluster, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(add_node, "resolve_host", lambda _flags, _text: HOSTS[2])
    monkeypatch.setattr(RequestFlags, "snapshot", lambda _flags: Snapshot())
    over = ended(RequestOutcome.DONE)
    request = msgspec.structs.replace(over.ended[0], skipped=("shop.orders: 4 ranges lost",))
    cluster.reports = [joining(), msgspec.structs.replace(over, ended=(request,))]
    assert "! shop.orders: 4 ranges lost\n" in run(data, "--replace", "node3").stderr


def test_what_does_not_go_with_a_replacement_is_wrong_usage(cluster: Cluster, data: Path) -> None:
    cluster.reports = [joining()]
    assert run(data, "--ignore-dead", "node2").exit_code == 2
    assert run(data, "--replace", "node3", "--count", "2").exit_code == 2
    assert not (data / "node4").exists()


def test_ctrl_c_leaves_the_join_running(cluster: Cluster, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster.reports = [joining()]

    async def interrupted(fetch: Any, joins: Any, *_: Any) -> bool:
        for join in joins:
            await join.check(await fetch(), "")
        raise KeyboardInterrupt

    monkeypatch.setattr(topology_reports, "follow_all", interrupted)
    left = run(data)
    assert left.exit_code == 130
    assert f"goes on: ebla topology wait {joining().open[0].request.id} --data {data}" in left.stderr
