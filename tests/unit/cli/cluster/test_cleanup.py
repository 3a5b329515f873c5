"""`ebla cleanup`: which node it means, and what it prints."""

import json
import uuid
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from ebla.cli.app import app
from ebla.cli.cluster import cleanup
from ebla.cli.cluster.cleanup import choose_local_node
from ebla.cli.cluster.local_cluster import LocalNode
from ebla.model.errors import InvalidRequest
from ebla.model.identity import ClusterId, HostId
from ebla.options import NodeOptions
from ebla.runtime.data_folder import NodeIdentity
from ebla.wire.verbs import CleanupAnswer

HOSTS = [HostId(uuid.UUID(f"{digits}0000-0000-4000-8000-000000000000")) for digits in ("aabb", "aacc")]


@pytest.fixture
def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[LocalNode]:
    def options(number: int) -> NodeOptions:
        return NodeOptions(data=f"{tmp_path}/{number}", address=f"127.0.0.{number}")

    made = [LocalNode(f"node{number}", tmp_path / "options.toml", options(number)) for number in (1, 2)]
    hosts = {node.folder.path: host for node, host in zip(made, HOSTS, strict=True)}
    monkeypatch.setattr(
        "ebla.runtime.data_folder.DataFolder.read_identity",
        lambda folder: NodeIdentity(host=hosts[folder.path], cluster=ClusterId(uuid.UUID(int=1)), cluster_name="c"),
    )
    return made


@pytest.mark.parametrize("text", ["node2", "127.0.0.2", "127.0.0.2:7000", "aacc", "AAC", str(HOSTS[1])])
def test_a_node_is_named_in_many_ways(nodes: list[LocalNode], text: str) -> None:
    assert choose_local_node(nodes, text) is nodes[1]


@pytest.mark.parametrize(("text", "why"), [("aa", "names several nodes"), ("10.0.0.7", "is no node of this machine")])
def test_what_names_none_or_several_is_refused_with_the_nodes(nodes: list[LocalNode], text: str, why: str) -> None:
    with pytest.raises(InvalidRequest, match=f"'{text}' {why}") as caught:
        choose_local_node(nodes, text)
    assert "node1 (127.0.0.1:7000), node2 (127.0.0.2:7000)" in caught.value.advice


def test_only_a_single_node_need_not_be_named(nodes: list[LocalNode]) -> None:
    assert choose_local_node(nodes[:1], None) is nodes[0]
    with pytest.raises(typer.BadParameter, match="node1, node2"):
        choose_local_node(nodes, None)


def test_it_prints_the_sums_of_the_shards(nodes: list[LocalNode], monkeypatch: pytest.MonkeyPatch) -> None:
    async def clean_up(_node: LocalNode) -> list[CleanupAnswer]:
        return [CleanupAnswer(before_bytes=156_000_000, after_bytes=100_500_000)] * 2

    monkeypatch.setattr(cleanup, "_clean_up", clean_up)
    monkeypatch.setattr(cleanup, "require_nodes", lambda _data: nodes)
    shown = CliRunner().invoke(app, ["cleanup", "node1"])
    assert (shown.exit_code, shown.output) == (0, "node1: 312 MB before, 201 MB after\n")
    as_json = CliRunner().invoke(app, ["cleanup", "node1", "--json"])
    assert json.loads(as_json.output) == {"node": "node1", "before_bytes": 312_000_000, "after_bytes": 201_000_000}
    assert CliRunner().invoke(app, ["cleanup"]).exit_code == 2
    assert CliRunner().invoke(app, ["cleanup", "node7"]).exit_code == 1
