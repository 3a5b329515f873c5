"""What the commands of failover print."""

import json
import uuid

import pytest
from typer.testing import CliRunner

from ebla.cli import command
from ebla.cli.app import app
from ebla.cli.cluster import failover
from ebla.cli.cluster.failover import check_lines, excluded_rows, headline
from ebla.cli.command import NodeFlags
from ebla.model.identity import HostId
from ebla.wire.failover_messages import CheckReport, ExclusionReport, FailoverCheckAnswer, FailoverStatusAnswer

HOST = HostId(uuid.UUID(int=3))


def status(*, is_enabled: bool) -> FailoverStatusAnswer:
    return FailoverStatusAnswer(
        is_leader=True,
        is_enabled=is_enabled,
        after_ms=120_000,
        max_count=2,
        count=1,
        now_ms=5_000,
        excluded=(
            ExclusionReport(
                host=HOST,
                address="127.0.0.3",
                since_ms=0,
                by="127.0.0.1",
                is_automatic=False,
                is_forced=True,
                opinions=("127.0.0.1: down for 4 s", "127.0.0.2: up for 9 s"),
            ),
        ),
    )


def test_checks_are_one_line_each() -> None:
    met = CheckReport(is_met=True, text="127.0.0.3 is a member", can_force=False)
    unmet = CheckReport(is_met=False, text="shop.audit would lose its last live replica", can_force=True)
    losses = ("shop: 4 of 48 vnode ranges with fewer live replicas than a quorum, 1 without any",)
    assert check_lines(FailoverCheckAnswer((met, unmet), losses)) == [
        "ok    127.0.0.3 is a member",
        "FAIL  shop.audit would lose its last live replica",
        f"!     {losses[0]}",
    ]


@pytest.mark.parametrize(("force", "code", "exit_code"), [(False, "refused", 1), (True, "done", 0)])
def test_a_dry_run_says_what_would_come_of_it(
    monkeypatch: pytest.MonkeyPatch, force: bool, code: str, exit_code: int
) -> None:
    unmet = CheckReport(is_met=False, text="shop.audit would lose its last live replica", can_force=True)
    monkeypatch.setattr(failover, "resolve_host", lambda _flags, _text: HOST)
    monkeypatch.setattr(command, "call_node", lambda *_arguments: FailoverCheckAnswer((unmet,)))
    arguments = ["failover", "node3", "--dry-run", "--json", *(["--force"] if force else [])]
    shown = CliRunner().invoke(app, arguments)
    fields = json.loads(shown.stdout)
    assert (shown.exit_code, fields["code"], fields["operation_id"]) == (exit_code, code, None)
    assert [one["text"] for one in fields["checks"]] == [unmet.text]


def test_a_reset_says_that_it_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "call_node", lambda *_arguments: status(is_enabled=True))
    shown = json.loads(CliRunner().invoke(app, ["failover", "--reset", "--json"]).stdout)
    assert (shown["code"], shown["outcome"], shown["count"]) == ("done", "done", 1)
    assert "code" not in json.loads(CliRunner().invoke(app, ["failover", "--status", "--json"]).stdout)


def test_the_status_names_the_setting_the_count_and_who_is_excluded() -> None:
    assert headline(status(is_enabled=False)).startswith("automatic failover is off; 1 of 2")
    assert headline(status(is_enabled=True)).startswith("automatic failover after 120 s; 1 of 2")
    (row,) = excluded_rows(status(is_enabled=True))
    assert row[0] == "127.0.0.3"
    assert row[2:5] == ["1970-01-01 00:00:00", "manual, forced", "127.0.0.1"]
    assert row[5] == "127.0.0.1: down for 4 s; 127.0.0.2: up for 9 s"


def test_wrong_usage_has_its_own_exit_status() -> None:
    for arguments in (["failover"], ["failover", "node1", "--status"], ["failover", "--reset", "--force"]):
        assert CliRunner().invoke(app, arguments).exit_code == 2


def test_a_failover_prints_first_what_would_lack_replicas(monkeypatch: pytest.MonkeyPatch) -> None:
    check = CheckReport(is_met=True, text="127.0.0.3 is a member", can_force=False)
    losses = ("shop: 4 of 48 vnode ranges with fewer live replicas than a quorum, 1 without any",)
    monkeypatch.setattr(failover, "resolve_host", lambda _flags, _text: HOST)
    monkeypatch.setattr(NodeFlags, "call", lambda *_: FailoverCheckAnswer((check,), losses))
    monkeypatch.setattr(failover, "run_operation", lambda _flags, _operation, _done: 0)
    excluded = CliRunner().invoke(app, ["failover", "node3"])
    assert (excluded.exit_code, excluded.stderr) == (0, f"! {losses[0]}\n")
    shown = json.loads(CliRunner().invoke(app, ["failover", "node3", "--dry-run", "--json"]).stdout)
    assert (shown["losses"], [one["is_met"] for one in shown["checks"]]) == (list(losses), [True])
