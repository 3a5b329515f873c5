"""`ebla decommission`, `removenode`, `rebuild` and `cdc check-and-repair`, against nodes that answer from a list."""

import json
import uuid
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from tests.unit.cli.cluster.topology_rig import Cluster
from tests.unit.client.topology_reports import HOSTS, JOIN, REPAIR, ended, global_request, joining
from typer.testing import CliRunner, Result

from ebla.cli.app import app
from ebla.cli.cluster import node_requests, requests
from ebla.model.errors import DeadlineExceeded, Refused, Unavailable, Unreachable
from ebla.topology.snapshot import NodeRequest
from ebla.topology.states import NodeRequestKind, RequestOutcome
from ebla.wire.topology_messages import RequestReport, SubmitTopologyAnswer, TopologyReport

QUIET = SubmitTopologyAnswer()


@pytest.fixture(autouse=True)
def _names(monkeypatch: pytest.MonkeyPatch) -> None:
    named = {f"node{number}": host for number, host in enumerate(HOSTS, 1)}
    monkeypatch.setattr(node_requests, "resolve_host", lambda _flags, text: named[text])


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def stored(kind: NodeRequestKind = NodeRequestKind.LEAVE, number: int = 3) -> NodeRequest:
    return NodeRequest(id=JOIN, kind=kind, host=HOSTS[number - 1], initiator=HOSTS[0], start_ms=1_700_000_000_000)


def report(request: NodeRequest, version: int = 61) -> TopologyReport:
    idle = msgspec.structs.replace(ended(RequestOutcome.DONE), version=version)
    if request.is_open:
        return msgspec.structs.replace(idle, open=(RequestReport(request=request),), ended=())
    return msgspec.structs.replace(idle, open=(), ended=(request,))


def done(request: NodeRequest, **changes: Any) -> TopologyReport:
    fields = {"streamed_bytes": 212_000_000, "streamed_ranges": 64, "end_ms": 1_700_000_014_200, **changes}
    return report(msgspec.structs.replace(request, outcome=RequestOutcome.DONE, **fields))


def test_a_decommission_is_checked_submitted_and_followed_to_its_end(cluster: Cluster) -> None:
    cluster.answers = [QUIET, SubmitTopologyAnswer(request=stored())]
    cluster.reports = [joining(), report(stored()), done(stored())]
    left = run("decommission", "node3")
    assert left.exit_code == 0, left.output
    assert left.stdout == "node3 127.0.0.3 left after 14.2 s (212 MB, 64 ranges)\n"
    assert left.stderr.startswith("request 3f2a: leave of node3 127.0.0.3\n")
    check, submission = cluster.sent
    assert (check.check_only, submission.check_only) == (True, False)
    assert check.request.id == submission.request.id
    assert (submission.request.kind, submission.request.host) == (NodeRequestKind.LEAVE, HOSTS[2])


def test_concerns_need_a_confirmation(cluster: Cluster) -> None:
    worried = SubmitTopologyAnswer(concerns=("shop: replication factor 3, and 2 nodes left",))
    cluster.answers, cluster.reports = [worried], [joining()]
    refused = run("decommission", "node3")
    assert refused.exit_code == 1
    assert refused.stderr.startswith("! shop: replication factor 3, and 2 nodes left\n")
    assert "--yes" in refused.stderr
    assert len(cluster.sent) == 1, "nothing was submitted"
    cluster.answers = [worried, SubmitTopologyAnswer(request=stored())]
    cluster.reports = [joining(), done(stored())]
    assert run("decommission", "node3", "--yes").exit_code == 0


def test_on_a_terminal_it_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", SimpleNamespace(isatty=lambda: True))
    answers = [True, False]
    monkeypatch.setattr("typer.confirm", lambda *_, **__: answers.pop(0))
    requests.confirm(("shop: too few nodes",), is_confirmed=False)
    with pytest.raises(Refused):
        requests.confirm(("shop: too few nodes",), is_confirmed=False)
    requests.confirm((), is_confirmed=False)
    assert not answers


def test_a_removal_ignores_further_dead_nodes_and_says_what_was_lost(cluster: Cluster) -> None:
    removal = stored(NodeRequestKind.REMOVE)
    cluster.answers = [QUIET, SubmitTopologyAnswer(request=removal)]
    cluster.reports = [joining(), done(removal, skipped=("shop.orders: 4 ranges have no replica left",))]
    removed = run("removenode", "node3", "--ignore-dead", "node2", "--ignore-dead", "node1", "--ignore-dead", "node2")
    assert removed.stdout.startswith("node3 127.0.0.3 is removed after ")
    lost = "! shop.orders: 4 ranges have no replica left\n"
    assert lost in removed.stderr
    assert lost in run("topology", "wait", str(JOIN)).stderr, "a command that waits for it later says so too"
    assert cluster.sent[-1].request.ignored_nodes == (HOSTS[1], HOSTS[0])


def test_a_rebuild_names_its_source_and_asks_nothing(cluster: Cluster) -> None:
    rebuilding = stored(NodeRequestKind.REBUILD)
    cluster.answers, cluster.reports = [SubmitTopologyAnswer(request=rebuilding)], [joining(), done(rebuilding)]
    shown = json.loads(run("rebuild", "node3", "--source-dc", "dc2", "--json").stdout)
    assert shown == {
        "request": str(JOIN),
        "outcome": "done",
        "error": "",
        "bytes": 212_000_000,
        "ranges": 64,
        "seconds": 14.2,
    }
    assert cluster.sent[0].request.rebuild_source == "dc2"


def test_a_request_that_fails_or_is_refused_has_exit_status_1(cluster: Cluster) -> None:
    rebuilding = stored(NodeRequestKind.REBUILD)
    failed = msgspec.structs.replace(rebuilding, outcome=RequestOutcome.FAILED, error="aborted: enough")
    cluster.answers, cluster.reports = [SubmitTopologyAnswer(request=rebuilding)], [joining(), report(failed)]
    ended_badly = run("rebuild", "node3")
    assert (ended_badly.exit_code, ended_badly.stderr.splitlines()[-1]) == (
        1,
        "ebla: rebuild of node3 127.0.0.3, request 3f2a failed: aborted: enough",
    )
    cluster.answers, cluster.reports = [Refused("node is excluded", advice="recover it")], [joining()]
    refused = run("rebuild", "node3")
    assert (refused.exit_code, refused.stderr) == (1, "ebla: not applied: node is excluded; recover it\n")


def test_detached_prints_the_id(cluster: Cluster) -> None:
    cluster.answers, cluster.reports = [SubmitTopologyAnswer(request=stored())], [joining()]
    assert run("rebuild", "node3", "--detach").stdout == f"{JOIN}\n"
    cluster.answers = [SubmitTopologyAnswer(request=stored())]
    shown = json.loads(run("rebuild", "node3", "--detach", "--json").stdout)
    assert (shown["request"], shown["outcome"], shown["bytes"]) == (str(JOIN), "pending", None)


def test_it_is_submitted_again_under_the_same_id_until_a_node_takes_it(cluster: Cluster) -> None:
    cluster.answers = [
        Unreachable("node1 is down"),
        Unavailable("no quorum"),
        DeadlineExceeded("no answer"),
        SubmitTopologyAnswer(request=stored(NodeRequestKind.REBUILD)),
    ]
    cluster.reports = [joining(), done(stored(NodeRequestKind.REBUILD))]
    rebuilt = run("rebuild", "node3")
    assert rebuilt.exit_code == 0
    assert len({one.request.id for one in cluster.sent}) == 1
    assert "ebla: not submitted yet: no quorum\n" in rebuilt.stderr


def test_without_a_majority_it_says_whether_the_request_may_be_stored(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "SUBMIT_S", 0.01)
    cluster.reports, cluster.answers = [joining()], [Unavailable("no quorum")] * 1_000
    without = run("rebuild", "node3", "--json")
    assert (without.exit_code, json.loads(without.stdout)["error"]) == (1, "Unavailable")
    cluster.answers = [DeadlineExceeded("no answer")] * 1_000
    unknown = json.loads(run("rebuild", "node3", "--json").stdout)
    assert unknown["outcome"] == "unknown"
    assert str(cluster.sent[-1].request.id) in unknown["message"]


def test_the_node_may_be_omitted_where_there_is_one(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [
        SimpleNamespace(name="node1", folder=SimpleNamespace(read_identity=lambda: SimpleNamespace(host=HOSTS[0])))
    ]
    monkeypatch.setattr(node_requests, "require_nodes", lambda _data: nodes)
    cluster.answers = [SubmitTopologyAnswer(request=stored(NodeRequestKind.REBUILD, 1))]
    cluster.reports = [joining()]
    assert run("rebuild", "--detach").exit_code == 0
    assert cluster.sent[0].request.host == HOSTS[0]
    nodes.append(nodes[0])
    assert run("rebuild").exit_code == 2


def test_a_decommission_is_done_if_the_only_node_that_could_be_asked_has_left(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    marked: list[uuid.UUID] = []

    async def has_left(node: Any) -> bool:
        marked.append(node.folder.read_identity().host)
        return len(marked) > 1

    nodes = [
        SimpleNamespace(folder=SimpleNamespace(read_identity=lambda host=host: SimpleNamespace(host=host)))
        for host in HOSTS[:3]
    ]
    monkeypatch.setattr(requests, "find_nodes", lambda _data: nodes)
    monkeypatch.setattr(requests, "has_left", has_left)
    cluster.answers = [QUIET, SubmitTopologyAnswer(request=stored())]
    cluster.reports = [joining(), report(stored()), Unavailable("no node answers")]
    left = run("decommission", "node3", "--json")
    assert left.exit_code == 0
    shown = json.loads(left.stdout)
    assert (shown["outcome"], shown["bytes"], shown["seconds"]) == ("done", None, None)
    assert marked == [HOSTS[2]] * 2, "and no other node's folder"


def test_ctrl_c_leaves_the_request_running(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    async def interrupted(*_: Any) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr("ebla.cli.cluster.topology_reports.follow_all", interrupted)
    cluster.answers, cluster.reports = [SubmitTopologyAnswer(request=stored())], [joining()]
    stopped = run("rebuild", "node3", "--data", str(Path("elsewhere")))
    assert stopped.exit_code == 130
    assert f"ebla topology wait {JOIN} --data elsewhere" in stopped.stderr
    assert f"ebla topology abort {JOIN} --data elsewhere" in stopped.stderr


# ---- ebla cdc


def test_streams_that_fit_need_nothing(cluster: Cluster) -> None:
    over = msgspec.structs.replace(ended(RequestOutcome.DONE), ended=(global_request(RequestOutcome.DONE),))
    cluster.answers, cluster.reports = [SubmitTopologyAnswer(request=global_request())], [joining(), over]
    checked = run("cdc", "check-and-repair")
    assert (checked.exit_code, checked.stdout) == (0, "nothing to do\n")


def test_a_new_generation_is_named_with_the_time_it_takes_effect(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    generation = uuid.UUID(int=77)
    request = msgspec.structs.replace(global_request(RequestOutcome.DONE), generation=generation)
    over = msgspec.structs.replace(ended(RequestOutcome.DONE), ended=(request,))
    known = SimpleNamespace(cdc_generations={generation: SimpleNamespace(timestamp_ms=1_700_000_060_000)})
    monkeypatch.setattr(requests.RequestFlags, "snapshot", lambda _flags: known)
    cluster.answers, cluster.reports = [SubmitTopologyAnswer(request=global_request())], [joining(), over]
    repaired = run("cdc", "check-and-repair")
    assert repaired.stdout == f"generation {generation} takes effect at 2023-11-14 22:14:20Z\n"
    cluster.answers, cluster.reports = [SubmitTopologyAnswer(request=global_request())], [joining(), over]
    shown = json.loads(run("cdc", "check-and-repair", "--json").stdout)
    assert (shown["generation"], shown["timestamp_ms"]) == (str(generation), 1_700_000_060_000)


def test_a_check_that_was_aborted_fails_and_a_detached_one_prints_its_id(cluster: Cluster) -> None:
    aborted = global_request(RequestOutcome.FAILED, "aborted: enough")
    over = msgspec.structs.replace(ended(RequestOutcome.DONE), ended=(aborted,))
    cluster.answers, cluster.reports = [SubmitTopologyAnswer(request=global_request())], [joining(), over]
    assert run("cdc", "check-and-repair").exit_code == 1
    cluster.answers = [SubmitTopologyAnswer(request=global_request())]
    assert run("cdc", "check-and-repair", "--detach").stdout == f"{REPAIR}\n"
