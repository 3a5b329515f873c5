"""`ebla group0` without a running node: errors as text and as JSON."""

import json
import random
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from ebla.cli.app import app
from ebla.cli.cluster.local_cluster import NewClusterSpec, assign_identities, find_or_create_nodes


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A cluster of two nodes, neither of which runs."""
    base = f"127.{random.randrange(20, 250)}.{random.randrange(0, 250)}.1"
    assign_identities(
        find_or_create_nodes(
            tmp_path / "data", NewClusterSpec(nodes=2, shards=1, base_address=base, cluster_name="ebla")
        )
    )
    return tmp_path / "data"


def group0(data: Path, *arguments: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(app, ["group0", *arguments, "--data", str(data)], input=stdin)


@pytest.mark.parametrize(
    "command",
    [
        ("put", "user/a", "1"),
        ("delete", "user/a"),
        ("lock",),
        ("remove", "00000000-0000-0000-0000-000000000001"),
        ("transfer-leader", "00000000-0000-0000-0000-000000000001"),
    ],
)
def test_a_change_that_reaches_nobody_was_not_applied(data: Path, command: tuple[str, ...]) -> None:
    output = group0(data, *command)
    assert output.exit_code == 1
    assert output.stderr.startswith(f"ebla: not applied: no node of {data} runs; ")
    as_json = group0(data, *command, "--json")
    assert (as_json.exit_code, as_json.stderr) == (1, "")
    shown = json.loads(as_json.stdout)
    assert (shown["outcome"], shown["error"]) == ("not_applied", "InvalidRequest")


@pytest.mark.parametrize("command", [("get", "user/a"), ("members",), ("check-quorum",), ("watch", "user/")])
def test_a_read_that_reaches_nobody_says_only_that(data: Path, command: tuple[str, ...]) -> None:
    output = group0(data, *command)
    assert output.exit_code == 1
    assert output.stderr.startswith(f"ebla: no node of {data} runs; ")
    shown = json.loads(group0(data, *command, "--json").stdout)
    assert "outcome" not in shown
    assert shown["message"] == f"no node of {data} runs"


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (("put", "user/a", "1", "--node", "node9"), "there is no node 'node9' in "),
        (("put", "topology/state", "1"), "the key topology/state belongs to: coordinator"),
        (("put", "elsewhere", "1"), "the key elsewhere has no known kind"),
        (("put", "user/a", "1", "--lock", "xyz"), "'xyz' is no lock; use the text that `ebla group0 lock` prints"),
        (("put", "user/a", "1", "--if-missing", "--if-index", "3"), "cannot be missing and have an index at once"),
        (("txn", "/nowhere/at/all"), "cannot read /nowhere/at/all: No such file or directory"),
        (("txn", "-"), "is no transaction"),
    ],
)
def test_what_is_wrong_is_said_before_anybody_is_asked(data: Path, command: tuple[str, ...], words: str) -> None:
    output = group0(data, *command, stdin='{"changes": [{"name": "user/a"}]}')
    assert output.exit_code == 1
    assert output.stderr.startswith("ebla: not applied: ")
    assert words in output.stderr
