"""`ebla leases` and `ebla activities` against an answer of a node."""

import json
import uuid
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from ebla.cli import command
from ebla.cli.app import app
from ebla.leadership.messages import LeaseGrant, LeaseId, LeaseState
from ebla.model.identity import HostId
from ebla.wire.leadership_messages import (
    ActivityReport,
    ClusterLeadershipAnswer,
    EndedActivityReport,
    HeldLeaseReport,
    LeadershipReport,
    SilentNode,
)

A, B, C = (HostId(uuid.UUID(int=number)) for number in (1, 2, 3))
OWN, OTHER = (LeaseId(uuid.UUID(int=number << 96)) for number in (0x5F0C9A1E, 0x0A0A0A0A))


def held(host: HostId, *, is_held: bool = True, trouble: str = "") -> HeldLeaseReport:
    return HeldLeaseReport(
        host=host,
        is_held=is_held,
        rtt_us=700,
        timeout_ms=503,
        renewed_ms_ago=1_800 if is_held else None,
        trouble=trouble,
    )


JOBS = ActivityReport(
    name="jobs",
    domain="pipeline",
    quorum="majority",
    state="ending",
    age_ms=3_600_000,
    waits_for="local_lease_expired",
    leases_held=1,
    leases_needed=2,
    ending_ms=2_100,
)
WAITING = ActivityReport(
    name="round",
    domain="purge",
    quorum="majority",
    state="waiting",
    age_ms=4_000,
    waits_for="no_quorum: lacks the lease of B",
)
LEADER = LeadershipReport(
    host=A,
    address="127.0.0.1",
    state=LeaseState.ACTIVE,
    lease=LeaseGrant(A, OWN, 1),
    left_ms=13_200,
    on_disk_ms=15_000,
    leads=True,
    term=12,
    held=(held(A), held(B, is_held=False, trouble="already_acquired: expiring")),
    voters=((A, B, C),),
    lease_id=str(OWN),
    activities=(WAITING,),
    ended=(
        EndedActivityReport(name="topology", domain="coordinator", reason="not_leader", ran_ms=9_000, ended_ms_ago=500),
    ),
    slow_turns=3,
    longest_turn_ms=240,
)
FORMER = LeadershipReport(
    host=B,
    address="127.0.0.2",
    state=LeaseState.EXPIRING,
    lease=LeaseGrant(B, OTHER, 1),
    left_ms=0,
    on_disk_ms=9_000,
    leads=True,
    term=11,
    activities=(JOBS,),
)
SILENT = SilentNode(C, "127.0.0.3", "no answer within 1000 ms")


@pytest.fixture
def answer(monkeypatch: pytest.MonkeyPatch) -> list[ClusterLeadershipAnswer]:
    """What the node answers."""
    answers = [ClusterLeadershipAnswer((LEADER, FORMER), (SILENT,))]
    monkeypatch.setattr(command, "call_node", lambda *_: answers[0])
    monkeypatch.setenv("COLUMNS", "200")
    return answers


def words(*command_line: str) -> tuple[int, list[list[str]]]:
    shown = CliRunner().invoke(app, command_line)
    return shown.exit_code, [line.split("  ") for line in shown.stdout.splitlines()]


def cells(line: list[str]) -> list[str]:
    return [cell.strip() for cell in line if cell.strip()]


def test_leases_are_those_that_the_newest_leader_holds_and_a_silent_node_is_listed(
    answer: list[ClusterLeadershipAnswer],
) -> None:
    status, lines = words("leases")
    assert status == 1, "one of three is no majority"
    assert [cells(line) for line in lines] == [
        ["leader 127.0.0.1, term 12, lease 5f0c9a1e, 1 of 3 voters (2 needed)"],
        ["node", "held by", "state", "left", "rtt/timeout", "renewed", "on disk", "note"],
        ["127.0.0.1", "127.0.0.1", "active", "13.2 s", "0.7/503 ms", "1.8 s ago", "15.0 s"],
        [
            *("127.0.0.2", "127.0.0.2", "expiring", "0.0 s", "0.7/503 ms", "–", "9.0 s"),
            "waits for jobs (2.1 s); already_acquired: expiring",
        ],
        ["127.0.0.3", "silent", "no answer within 1000 ms"],
        ["control loop of 127.0.0.1: 3 turns above 100 ms, longest 240 ms"],
    ]


def test_the_exit_status_says_whether_the_leader_has_a_majority(answer: list[ClusterLeadershipAnswer]) -> None:
    leader = msgspec.structs.replace(LEADER, held=(held(A), held(C)))
    answer[0] = ClusterLeadershipAnswer((leader,))
    assert words("leases", "--json")[0] == 0
    joint = msgspec.structs.replace(leader, voters=((A, B, C), (A, B)))
    answer[0] = ClusterLeadershipAnswer((joint,))
    status, lines = words("leases")
    assert (status, cells(lines[0])) == (
        1,
        ["leader 127.0.0.1, term 12, lease 5f0c9a1e, 2 of 3 and 1 of 2 voters (2, 2 needed)"],
    )
    answer[0] = ClusterLeadershipAnswer((msgspec.structs.replace(LEADER, leads=False),))
    status, lines = words("leases")
    assert (status, cells(lines[0])) == (1, ["no leader is known"])


def test_activities_show_what_runs_on_every_node_and_what_a_waiting_one_waits_for(
    answer: list[ClusterLeadershipAnswer],
) -> None:
    status, lines = words("activities")
    assert status == 0
    assert [cells(line) for line in lines] == [
        ["activity", "domain", "node", "quorum", "leases", "state", "age", "waits for"],
        ["round", "purge", "127.0.0.1", "majority", "–", "waiting", "4.0 s", "no_quorum: lacks the lease of B"],
        ["jobs", "pipeline", "127.0.0.2", "majority", "1 of 2", "ending", "3600.0 s", "local_lease_expired"],
    ]
    _, lines = words("activities", "--ended")
    assert [cells(line) for line in lines][1:] == [
        ["topology", "coordinator", "127.0.0.1", "not_leader", "9.0 s", "0.5 s ago"]
    ]


def test_programs_get_the_names_of_fields(answer: list[ClusterLeadershipAnswer]) -> None:
    def shown(*command_line: str) -> Any:
        return json.loads(CliRunner().invoke(app, (*command_line, "--json")).stdout)

    leases = shown("leases")
    assert leases["reports"][0]["lease"] == {"holder": str(A), "lease_id": str(OWN), "number": 1}
    assert [one["is_held"] for one in leases["reports"][0]["held"]] == [True, False]
    assert leases["reports"][0]["voters"] == [[str(A), str(B), str(C)]]
    assert leases["silent"] == [{"host": str(C), "address": "127.0.0.3", "cause": SILENT.cause}]
    assert [(one["node"], one["name"]) for one in shown("activities")] == [
        ("127.0.0.1", "round"),
        ("127.0.0.2", "jobs"),
    ]
    assert [(one["node"], one["reason"]) for one in shown("activities", "--ended")] == [("127.0.0.1", "not_leader")]
