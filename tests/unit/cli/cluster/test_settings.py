"""`ebla settings` against answers of a node."""

import json
import uuid
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner, Result

from ebla.cli import command
from ebla.cli.app import app
from ebla.cli.cluster import settings
from ebla.model.errors import ConnectionLost, Refused
from ebla.model.identity import HostId
from ebla.wire.settings_messages import (
    HostProblem,
    PurgeReport,
    SettingChange,
    SettingHistoryView,
    SettingsHistoryAnswer,
    SettingsListAnswer,
    SettingsPurgeAnswer,
    SettingsPurgeStatusAnswer,
    SettingsWatchAnswer,
    SettingsWriteAnswer,
    SettingsWriteRequest,
    SettingView,
)

HOST = HostId(uuid.UUID(int=3))
DOWN = HostProblem(host=HOST, address="127.0.0.3", cause="down for 8 min")
SLOW = HostProblem(host=HOST, address="127.0.0.3", cause="has not acknowledged it yet", is_up=True)
SECOND_US = 1_000_000
NOW_US = 1_700_000_000 * SECOND_US
VIEW = SettingView(name="user/colour", value=b"blue", changed_wall_us=NOW_US, changed_by=HOST, changed_at="127.0.0.3")

Answer = msgspec.Struct | Exception


class Node:
    """Gives the answers one after another, and keeps what it was asked."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self.requests: list[Any] = []

    def call(self, _data: object, _node: object, _verb: object, request: object, _timeout_ms: int) -> Answer:
        self.requests.append(request)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Node:
    one = Node()
    monkeypatch.setattr(command, "call_node", one.call)
    monkeypatch.setattr(settings, "RETRY_S", 0)
    return one


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["settings", *arguments])


# ---- reads


def test_list_reads_all_pages_and_says_what_is_not_in_effect(node: Node) -> None:
    bad = SettingView(name="settings_purge", value=b"{}", is_default=True, problem="age_ms is negative")
    node.answers = [SettingsListAnswer((bad,), more=True), SettingsListAnswer((VIEW,))]
    shown = run("list", "--deleted")
    assert shown.exit_code == 0
    assert [(one.after, one.deleted) for one in node.requests] == [("", True), ("settings_purge", True)]
    lines = shown.stdout.splitlines()
    assert lines[1].split()[:2] == ["settings_purge", "-"]
    assert lines[1].endswith("{} (not in effect: age_ms is negative, default)")
    assert lines[2].split() == ["user/colour", "2023-11-14", "22:13:20Z", "127.0.0.3", "blue"]


def test_list_for_programs(node: Node) -> None:
    node.answers = [SettingsListAnswer((VIEW,))]
    (shown,) = json.loads(run("list", "user/", "--json").stdout)
    assert node.requests[0].prefix == "user/"
    assert (shown["name"], shown["value"], shown["changed_us"]) == ("user/colour", "blue", NOW_US)
    assert (shown["changed_by"], shown["deleted"], shown["not_in_effect"]) == (str(HOST), False, "")


def test_get_prints_the_value_and_fails_without_one(node: Node) -> None:
    node.answers = [VIEW, SettingView(name="user/none", value=None)]
    assert run("get", "user/colour").stdout == "blue\n"
    missing = run("get", "user/none")
    assert (missing.exit_code, missing.stdout, missing.stderr) == (1, "", "ebla: user/none has no value\n")


def test_watch_begins_with_the_next_change_and_lists_again_after_a_reset(node: Node) -> None:
    other = msgspec.structs.replace(VIEW, name="user/size", value=None, is_deleted=True)
    node.answers = [
        SettingsListAnswer((), serial=7),
        SettingsWatchAnswer(serial=8, settings=(VIEW,)),
        SettingsWatchAnswer(serial=2, reset=True),
        SettingsListAnswer((other,), serial=3),
    ]
    shown = run("watch", "user/", "--count", "2")
    assert [request.after for request in node.requests] == ["", 7, 8, ""]
    assert shown.stdout.splitlines() == [
        "2023-11-14 22:13:20Z user/colour = blue by 127.0.0.3",
        "2023-11-14 22:13:20Z user/size = - by 127.0.0.3 (deleted)",
    ]


def test_history_shows_changes_and_lost_conflicts(node: Node) -> None:
    change = SettingHistoryView(
        seen_wall_us=NOW_US, changed_wall_us=NOW_US, changed_by=HOST, changed_at="127.0.0.3", old=None, new=b"red"
    )
    lost = msgspec.structs.replace(change, old=b"red", new=b"green", lost=True)
    node.answers = [SettingsHistoryAnswer((change, lost)), SettingsHistoryAnswer((change, lost))]
    lines = run("history", "user/colour").stdout.splitlines()
    assert lines[1].endswith("127.0.0.3  - -> red")
    assert lines[2].endswith("127.0.0.3  green lost a conflict against red")
    assert [one["lost"] for one in json.loads(run("history", "user/colour", "--json").stdout)] == [False, True]


# ---- changes


@pytest.mark.parametrize(
    ("missing", "text"),
    [
        ((), "done; 5 of 5 nodes have it"),
        ((DOWN,), "done; 4 of 5 nodes have it, 127.0.0.3 is down for 8 min"),
        ((SLOW,), "done; 4 of 5 nodes have it, 127.0.0.3 has not acknowledged it yet"),
    ],
)
def test_set_says_which_nodes_have_it(node: Node, missing: tuple[HostProblem, ...], text: str) -> None:
    node.answers = [SettingsWriteAnswer(changed=True, members=5, missing=missing)]
    shown = run("set", "settings_purge.age_ms", "5", "--if", "4", "--on", "127.0.0.3")
    assert (shown.exit_code, shown.stdout) == (0, f"{text}\n")
    assert node.requests == [
        SettingsWriteRequest(
            changes=(SettingChange("settings_purge.age_ms", "5"),),
            expected=(SettingChange("settings_purge.age_ms", "4"),),
            on="127.0.0.3",
            wait_ms=1_000,
        )
    ]


@pytest.mark.parametrize(("missing", "status"), [((), 0), ((DOWN,), 0), ((SLOW,), 1)])
def test_wait_fails_if_a_node_that_is_up_is_missing(node: Node, missing: tuple[HostProblem, ...], status: int) -> None:
    node.answers = [SettingsWriteAnswer(changed=True, members=5, missing=missing)]
    shown = run("set", "user/colour", "blue", "--wait", "--json")
    assert shown.exit_code == status
    assert node.requests[0].wait_ms == 30_000
    assert json.loads(shown.stdout)["have"] == 5 - len(missing)


def test_delete_writes_no_value(node: Node) -> None:
    node.answers = [SettingsWriteAnswer(changed=False, members=3)]
    assert run("delete", "user/colour").stdout == "done; nothing changed\n"
    assert node.requests[0].changes == (SettingChange("user/colour", None),)


@pytest.mark.parametrize(
    ("error", "outcome", "words"),
    [
        (Refused("user/colour is red"), "not_applied", "ebla: not applied: user/colour is red\n"),
        (ConnectionLost("the node ended"), "unknown", "ebla: unknown whether it was applied: the node ended\n"),
    ],
)
def test_an_error_says_its_outcome(node: Node, error: Exception, outcome: str, words: str) -> None:
    node.answers = [error, error]
    shown = run("set", "user/colour", "blue", "--if", "green")
    assert (shown.exit_code, shown.stderr) == (1, words)
    assert json.loads(run("set", "user/colour", "blue", "--json").stdout)["outcome"] == outcome


# ---- purge

PURGED = PurgeReport(result="purged", tombstones=12)
FAILED = PurgeReport(result="prepare_failed", problems=(DOWN,), outcome="not_applied", ended_wall_us=NOW_US)


def test_purge_prints_each_step_and_asks_for_further_ones(node: Node) -> None:
    node.answers = [
        SettingsPurgeAnswer(("tentative",)),
        ConnectionLost("the node ended"),
        SettingsPurgeAnswer(("prepared", "pushed")),
        SettingsPurgeAnswer(("effective",), PURGED),
    ]
    shown = run("purge", "--older-than", "5m", "--timeout", "20s")
    steps = ["tentative", "prepared", "pushed", "effective", "purged: 12 tombstones"]
    assert (shown.exit_code, shown.stdout.splitlines()) == (0, steps)
    assert [request.seen for request in node.requests] == [0, 1, 1, 3]
    assert len({request.round for request in node.requests}) == 1
    assert (node.requests[0].older_than_ms, node.requests[0].timeout_ms) == (300_000, 20_000)


def test_a_failed_purge_names_the_hosts_and_the_outcome(node: Node) -> None:
    node.answers = [SettingsPurgeAnswer((), FAILED), SettingsPurgeAnswer((), FAILED)]
    shown = run("purge")
    words = "ebla: not applied: prepare_failed: 127.0.0.3 (down for 8 min)\n"
    assert (shown.exit_code, shown.stderr) == (1, words)
    found = json.loads(run("purge", "--json").stdout)
    assert (found["result"], found["outcome"]) == ("prepare_failed", "not_applied")
    assert found["problems"][0]["address"] == "127.0.0.3"


def test_nothing_to_purge_is_no_failure(node: Node) -> None:
    node.answers = [SettingsPurgeAnswer((), PurgeReport(result="nothing_to_purge", outcome="not_applied"))]
    shown = run("purge")
    assert (shown.exit_code, shown.stdout) == (0, "nothing_to_purge\n")


def test_purge_status_for_people_and_programs(node: Node) -> None:
    ended = msgspec.structs.replace(FAILED, ended_wall_us=NOW_US - 20 * SECOND_US)
    status = SettingsPurgeStatusAnswer(
        now_wall_us=NOW_US,
        tentative_us=NOW_US - 14 * 60 * SECOND_US,
        effective_us=NOW_US - 14 * 60 * SECOND_US,
        watermark_us=0,
        waiting=12,
        oldest_wall_us=NOW_US - 9 * 60 * SECOND_US,
        last_round=ended,
    )
    node.answers = [status, status, msgspec.structs.replace(status, future=2, future_by=("127.0.0.2",))]
    assert run("purge-status").stdout.splitlines() == [
        "purged up to 14 min ago; 12 tombstones wait, the oldest for 9 min",
        "last round 20 s ago: prepare_failed: 127.0.0.3 (down for 8 min)",
    ]
    assert json.loads(run("purge-status", "--json").stdout)["last_round"]["result"] == "prepare_failed"
    assert run("purge-status").stdout.splitlines()[1] == "2 dated in the future, by 127.0.0.2"


def test_purge_status_before_the_first_purge(node: Node) -> None:
    node.answers = [
        SettingsPurgeStatusAnswer(now_wall_us=NOW_US, tentative_us=NOW_US, effective_us=0, watermark_us=0, waiting=0)
    ]
    lines = run("purge-status").stdout.splitlines()
    assert lines[0] == "never purged; no tombstone waits"
    assert "unfinished" in lines[1]


# ---- explain


@pytest.mark.parametrize(
    ("arguments", "row", "result", "pushed"),
    [
        (("0|{a:(1,10)}|x", "0|{a:(2,12)}|y"), 2, "0|{a:(2,12)}|y", False),
        (("0|{a:(1,10)}|x", "0|{b:(1,12)}|y"), 6, "0|{a:(1,10), b:(1,12)}|y", True),
        (("0|{a:(1,10)}|x", "-"), 0, "0|{a:(1,10)}|x", False),
        (("-", "0|{a:(1,10)}|D", "--purged-until", "10"), 0, "-", False),
        (("-", "0|{a:(1,10)}|D"), 0, "0|{a:(1,10)}|D", False),
    ],
)
def test_explain_runs_the_merge(arguments: tuple[str, ...], row: int, result: str, pushed: bool) -> None:
    shown = json.loads(run("explain", *arguments, "--json").stdout)
    assert shown == {"row": row, "result": result, "pushed": pushed}
    text = run("explain", *arguments).stdout
    assert text == f"row     {row}\nresult  {result}\npushed  {'yes' if pushed else 'no'}\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ("explain", "nonsense", "-"),
        ("purge", "--timeout", "soon"),
        ("purge", "--older-than", "5"),
        ("set", "user/colour"),
        ("get",),
    ],
)
def test_wrong_usage_has_status_2_and_asks_nobody(node: Node, arguments: tuple[str, ...]) -> None:
    assert run(*arguments).exit_code == 2
    assert node.requests == []
