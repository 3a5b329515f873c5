"""What a node refuses at its start, before any process runs."""

import json
import os
import random
from pathlib import Path
from typing import NoReturn

import pytest

from ebla.cli.cluster.local_cluster import LocalNode, NewClusterSpec, assign_identities, find_or_create_nodes
from ebla.node import __main__ as entry
from ebla.node import control
from ebla.node.process import reporter
from ebla.options import LogFormat
from ebla.runtime import file_lock
from ebla.runtime.system_clock import SystemClock


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalNode:
    def run(work: object) -> NoReturn:
        raise AssertionError("the node would run")

    monkeypatch.setattr(control, "run_process", run)
    monkeypatch.setattr(control, "_run_control", lambda *_: None)
    monkeypatch.setattr(entry, "raise_open_files", lambda _: 1_024)
    base = f"127.{random.randrange(20, 250)}.{random.randrange(0, 250)}.1"
    nodes = find_or_create_nodes(
        tmp_path,
        NewClusterSpec(nodes=1, shards=1, base_address=base, cluster_name="ebla", overrides=("limits.lock_wait_ms=0",)),
    )
    assign_identities(nodes)
    return nodes[0]


def start(made: LocalNode, *arguments: str) -> int:
    return entry.main(["control", "--options", str(made.options_path), *arguments])


def test_a_healthy_folder_would_run(made: LocalNode) -> None:
    with pytest.raises(AssertionError, match="the node would run"):
        start(made)


@pytest.mark.parametrize("child", ["shard-4", "bulk"])
def test_a_living_child_of_a_predecessor_keeps_a_node_from_starting(
    made: LocalNode, capsys: pytest.CaptureFixture[str], child: str
) -> None:
    lock = file_lock.acquire(made.folder.shard_lock(4) if child == "shard-4" else made.folder.bulk_lock)
    assert start(made) == 1
    assert f"process {os.getpid()} holds {lock.path}" in capsys.readouterr().err
    lock.release()
    with pytest.raises(AssertionError, match="the node would run"):
        start(made)


def test_a_running_node_keeps_another_from_starting(made: LocalNode, capsys: pytest.CaptureFixture[str]) -> None:
    lock = file_lock.acquire(made.folder.control_lock)
    assert start(made) == 1
    assert f"a node already runs in {made.folder.path} (process {os.getpid()})" in capsys.readouterr().err
    lock.release()


def test_wrong_options_are_told_with_file_and_key(made: LocalNode, capsys: pytest.CaptureFixture[str]) -> None:
    assert start(made, "--set", "limits.stop_ms=1") == 1
    assert f"{made.options_path}: key `limits.stop_ms` is 1; allowed is a whole number" in capsys.readouterr().err


def test_a_fresh_node_with_peers_and_without_a_token_is_refused(
    made: LocalNode, capsys: pytest.CaptureFixture[str]
) -> None:
    made.folder.identity.unlink()
    assert start(made, "--set", 'peers=["127.0.0.9"]') == 1
    assert "it must join their cluster; make a token there" in capsys.readouterr().err
    assert made.folder.read_identity() is None


def test_a_fresh_node_without_peers_founds_a_cluster(made: LocalNode) -> None:
    before = made.folder.read_identity()
    made.folder.identity.unlink()
    with pytest.raises(AssertionError, match="the node would run"):
        start(made)
    after = made.folder.read_identity()
    assert before is not None
    assert after is not None
    assert after.cluster != before.cluster


def test_a_first_start_that_was_overtaken_takes_the_identity_it_finds(
    made: LocalNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two starts at once in a fresh folder: both saw no identity, and one created it while the other waited."""
    before = made.folder.read_identity()
    certificate = (made.folder.tls / "node.pem").read_bytes()
    monkeypatch.setattr(control, "check_folder", lambda _options: None)
    with pytest.raises(AssertionError, match="the node would run"):
        start(made)
    assert made.folder.read_identity() == before
    assert (made.folder.tls / "node.pem").read_bytes() == certificate


def test_the_log_is_written_as_asked(capsys: pytest.CaptureFixture[str]) -> None:
    reporter(SystemClock(), "control", LogFormat.JSON)("node.tried", {"answer": 42})
    reporter(SystemClock(), "control", LogFormat.PEOPLE)("node.tried", {"answer": 42})
    for_machines, for_people = capsys.readouterr().err.splitlines()
    line = json.loads(for_machines)
    assert (line["event"], line["subject"], line["severity"], line["answer"]) == ("node.tried", "control", "note", 42)
    assert for_people.endswith("answer=42")
