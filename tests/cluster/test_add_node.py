"""Nodes are added to a running cluster, a join is aborted, and the node that did not join is reset and joins again."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.conftest import QUICK, eventually, random_base_address

from ebla.cli.cluster.local_cluster import LocalNode, find_nodes, last_stop

FLAGS = [flag for setting in QUICK for flag in ("--set", setting)]


class Shell:
    """Commands in processes of their own: the nodes that they start must outlive them."""

    def __init__(self, data: Path) -> None:
        self.data = data

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        arguments = [sys.executable, "-m", "ebla", *command]
        return subprocess.run(arguments, capture_output=True, text=True, timeout=100, check=False)

    def ok(self, *command: str) -> str:
        done = self.run(*command, "--data", str(self.data))
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def status_of(self, *command: str) -> int:
        return self.run(*command, "--data", str(self.data)).returncode

    def json(self, *command: str) -> Any:
        return json.loads(self.ok(*command, "--json"))

    def node(self, name: str) -> LocalNode:
        return next(node for node in find_nodes(self.data) if node.name == name)

    def states(self) -> dict[str, str]:
        """Of the rows of nodes that have not left, by name."""
        return {one["name"]: one["state"] for one in self.json("topology")["nodes"] if one["state"] != "left"}


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    one = Shell(tmp_path / "data")
    one.ok("up", "--no-follow", "--nodes", "3", "--shards", "1", "--base-address", random_base_address(), *FLAGS)
    yield one
    one.run("down", "--data", str(one.data))
    for node in find_nodes(one.data):
        eventually(node.is_gone, f"{node.name} left a process behind")


def test_a_node_joins_another_is_aborted_and_joins_after_a_reset(shell: Shell) -> None:
    joined = shell.json("add-node")
    assert (joined["node"], joined["outcome"], joined["error"]) == ("node4", "done", "")
    assert joined["seconds"] > 0
    assert shell.states() == dict.fromkeys(("node1", "node2", "node3", "node4"), "normal")
    assert shell.json("topology", "wait", joined["request"][:8])["outcome"] == "done"
    assert shell.status_of("topology", "abort", joined["request"]) == 1, "it has ended"
    running = shell.run("reset-node", str(shell.data / "node4"), "--yes")
    assert running.returncode == 1
    assert "stop it first" in running.stderr

    # A node that is down blocks the next join, so that it can be aborted while it waits.
    dead = shell.node("node3")
    pid = dead.running_pid()
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: _is_down(shell, "node3"), "the others notice")
    request = shell.ok("add-node", "--detach").split()[0]
    assert shell.status_of("topology", "wait", request, "--timeout", "0.1") == 3
    eventually(lambda: "nodes down" in _cause(shell, request), "the join says what it waits for")
    aborted = shell.json("topology", "abort", request, "--reason", "a test")
    assert aborted["outcome"] == "failed"
    assert "a test" in aborted["error"]
    new = shell.node("node5")
    eventually(new.is_gone, "the rejected node ends")
    assert "reset-node" in last_stop(new)

    reset = shell.run("reset-node", str(shell.data / "node5"), "--yes")
    assert reset.returncode == 0, reset.stderr
    shell.ok("up", "--no-follow")
    assert shell.states() == dict.fromkeys(("node1", "node2", "node3", "node4", "node5"), "normal")


def _is_down(shell: Shell, name: str) -> bool:
    done = shell.run("status", "--json", "--data", str(shell.data))
    return any(node["name"] == name and node["held_up_by"] == 0 for node in json.loads(done.stdout)["nodes"])


def _cause(shell: Shell, request: str) -> str:
    (found,) = [one for one in shell.json("topology")["open"] if one["request"] == request]
    return "" if found["waits_for"] is None else str(found["waits_for"]["text"])
