"""`ebla topology`, `wait` and `abort` against reports of nodes."""

import json

import msgspec
import pytest
from tests.unit.cli.cluster.topology_rig import Cluster
from tests.unit.client.topology_reports import JOIN, ended, global_request, joining, request
from typer.testing import CliRunner, Result

from ebla.cli.app import app
from ebla.cli.cluster.topology_reports import FollowedLines
from ebla.client.request_following import FollowedState
from ebla.model.errors import Refused, Unavailable, Unreachable
from ebla.topology.states import NodeState, RequestOutcome
from ebla.wire.topology_messages import AbortTopologyAnswer, RequestReport

ABORTED = "aborted: enough"


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["topology", *arguments])


def test_the_report_of_any_node_is_shown(cluster: Cluster) -> None:
    cluster.reports = [joining()]
    shown = run()
    assert shown.exit_code == 0
    assert shown.stdout.startswith("coordinator  node2 127.0.0.2, term 7")
    assert json.loads(run("--json").stdout)["version"] == 58


def test_without_an_answer_it_fails(cluster: Cluster) -> None:
    cluster.reports = [Unavailable("no node answers")]
    assert (run().exit_code, run().stderr) == (1, "ebla: no node answers\n")


def test_wait_survives_a_change_of_leader_and_ends_with_the_outcome(cluster: Cluster) -> None:
    cluster.reports = [joining(), joining(moved=8_000_000), Unavailable("no node answers"), ended(RequestOutcome.DONE)]
    done = run("wait", "3f2a")
    assert (done.exit_code, done.stdout) == (
        0,
        "join of node4 127.0.0.4, request 3f2a is done after 12.3 s (8 MB, 2 ranges)\n",
    )
    assert "no node answers" in done.stderr
    cluster.reports = [joining(), joining(moved=8_000_000), ended(RequestOutcome.DONE)]
    assert json.loads(run("wait", "3f2a", "--json").stdout) == {
        "request": str(JOIN),
        "outcome": "done",
        "error": "",
        "bytes": 8_000_000,
        "ranges": 2,
        "seconds": 12.3,
    }


def test_wait_fails_with_the_error_of_the_request(cluster: Cluster) -> None:
    cluster.reports = [ended(RequestOutcome.FAILED, "cancelled: node3 is down")]
    failed = run("wait", "3f2a")
    assert failed.exit_code == 1
    assert failed.stderr.endswith("request 3f2a failed: cancelled: node3 is down\n")


def test_a_wait_that_times_out_has_its_own_exit_status(cluster: Cluster) -> None:
    cluster.reports = [joining()]
    late = run("wait", "3f2a", "--timeout", "0.01")
    assert late.exit_code == 3
    assert f"still runs; ask again with: ebla topology wait {JOIN}" in late.stderr
    shown = json.loads(run("wait", "3f2a", "--timeout", "0", "--json").stdout)
    assert (shown["outcome"], shown["seconds"]) == ("running", None)


def test_an_unknown_request_is_an_error_and_wrong_usage_has_its_own_status(cluster: Cluster) -> None:
    cluster.reports = [joining()]
    unknown = run("wait", "ffff")
    assert unknown.exit_code == 1
    assert "open: 3f2a (join, running), 8c01 (join, pending)" in unknown.stderr
    for arguments in (["wait"], ["abort"], ["wait", "3f2a", "--timeout", "soon"], ["--json", "wait", "3f2a"]):
        assert run(*arguments).exit_code == 2


def test_abort_tries_the_next_node_and_waits_for_the_end_of_the_rollback(cluster: Cluster) -> None:
    rolling_back = request(4, JOIN, RequestOutcome.RUNNING, ABORTED)
    cluster.answers = [Unreachable("node1 is down"), AbortTopologyAnswer(rolling_back)]
    cluster.reports = [
        joining(),
        joining(),
        ended(RequestOutcome.FAILED, ABORTED, NodeState.BOOTSTRAPPING),
        ended(RequestOutcome.FAILED, ABORTED, NodeState.LEFT),
    ]
    done = run("abort", "3f2a", "--reason", "enough")
    assert (done.exit_code, done.stdout) == (0, f"join of node4 127.0.0.4, request 3f2a has ended: {ABORTED}\n")
    assert [(one.request, one.reason) for one in cluster.sent] == [(JOIN, "enough")] * 2


def test_abort_may_leave_the_rollback_to_the_cluster(cluster: Cluster) -> None:
    cluster.answers = [AbortTopologyAnswer(request(4, JOIN, RequestOutcome.RUNNING, ABORTED))]
    cluster.reports = [joining()]
    done = run("abort", "3f2a", "--detach")
    assert done.exit_code == 0
    assert f"is rolled back; wait for it with: ebla topology wait {JOIN}" in done.stdout


def test_an_abort_that_comes_too_late_is_refused(cluster: Cluster) -> None:
    cluster.answers = [Refused("too late: reads use the new ring since version 57")]
    cluster.reports = [joining()]
    late = run("abort", "3f2a")
    assert late.exit_code == 1
    assert late.stderr == "ebla: not applied: too late: reads use the new ring since version 57\n"


def test_the_abort_of_an_ended_request_changes_nothing_and_reports_its_outcome(cluster: Cluster) -> None:
    cluster.reports = [ended(RequestOutcome.DONE)]
    over = run("abort", "3f2a", "--json")
    assert (over.exit_code, json.loads(over.stdout)["outcome"]) == (1, "done")
    assert not cluster.sent


def test_global_requests_are_shown_waited_for_and_aborted(cluster: Cluster) -> None:
    waiting = global_request()
    queued = msgspec.structs.replace(joining(), open=(*joining().open, RequestReport(request=waiting)))
    failed = global_request(RequestOutcome.FAILED, "aborted: not now")
    over = msgspec.structs.replace(ended(RequestOutcome.DONE), ended=(failed,))
    cluster.reports = [queued]
    assert "cdc0  check_and_repair_cdc_streams, pending" in run().stdout
    cluster.answers = [AbortTopologyAnswer(failed)]
    cluster.reports = [queued, over]
    done = run("abort", "cdc0")
    assert (done.exit_code, cluster.sent[0].request) == (0, waiting.id)
    assert done.stdout.endswith("has ended: aborted: not now\n")
    cluster.reports = [over]
    assert run("wait", "cdc0").exit_code == 1
    shown = json.loads(run("wait", "cdc0", "--json").stdout)
    assert (shown["bytes"], shown["ranges"]) == (None, None)


def test_lines_show_a_new_state_at_once_and_new_figures_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    now = [0.0]
    lines = FollowedLines(quiet=False, now_s=lambda: now[0])
    for moment, state, cause in (
        (0.0, "pending", "cancelled in 60 s"),
        (1.0, "pending", "cancelled in 59 s"),
        (5.0, "pending", "cancelled in 55 s"),
        (5.5, "bootstrapping", ""),
        (30.0, "bootstrapping", ""),
    ):
        now[0] = moment
        lines.update(FollowedState(label="node4", state=state, cause=cause))
    assert capsys.readouterr().err.splitlines() == [
        "node4: pending; cancelled in 60 s",
        "node4: pending; cancelled in 55 s",
        "node4: bootstrapping",
    ]
