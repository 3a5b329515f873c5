"""`ebla up`, `status` and `down` from end to end, as a user at a terminal runs them."""

import asyncio
import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.conftest import QUICK, eventually, random_base_address

from ebla.cli.cluster.local_cluster import SHARDS_DEFAULT, LocalNode, find_nodes
from ebla.cli.cluster.node_calls import probe_nodes
from ebla.cli.cluster.up import ASK_S, KILL_S, STOP_SLACK_S
from ebla.node.__main__ import main as run_process

STOP_MS = 1_000
BUSY_S = 3.0
"""Allowance for starting and ending a process on a busy machine."""
SETTINGS = [flag for setting in QUICK for flag in ("--set", setting)]


class Terminal:
    def __init__(self, data: Path) -> None:
        self.data = data
        self.base_address = random_base_address()

    def command(self, name: str, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "ebla", name, "--data", str(self.data), *arguments]

    def run(self, name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(self.command(name, *arguments), capture_output=True, text=True, timeout=100, check=False)

    def up_arguments(self, nodes: int, shards: int = 1) -> list[str]:
        shape = ["--nodes", str(nodes), "--base-address", self.base_address]
        return [*shape, *([] if shards == SHARDS_DEFAULT else ["--shards", str(shards)]), *SETTINGS]

    def status(self) -> tuple[int, dict[str, Any]]:
        done = self.run("status", "--json")
        return done.returncode, json.loads(done.stdout)


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    made = Terminal(tmp_path / "data")
    yield made
    if not all(node.is_gone() for node in find_nodes(made.data)):
        made.run("down")
        assert all(node.is_gone() for node in find_nodes(made.data))


def test_a_cluster_comes_up_shows_itself_goes_down_and_keeps_its_identities(terminal: Terminal) -> None:
    up = terminal.run("up", "--no-follow", *terminal.up_arguments(2, SHARDS_DEFAULT))
    assert up.returncode == 0, up.stderr
    prefix = terminal.base_address.rpartition(".")[0]
    for number in (1, 2):
        assert f"node{number}  control {prefix}.{number}:7000  shards {prefix}.{number}:7010" in up.stdout

    code, first = terminal.status()
    assert code == 0
    assert [(node["name"], node["state"], node["held_up_by"]) for node in first["nodes"]] == [
        ("node1", "up", 1), ("node2", "up", 1)
    ]  # fmt: skip
    assert [[process["name"] for process in node["processes"]] for node in first["nodes"]] == [
        ["control", "shard-0", "shard-1", "bulk"]
    ] * 2
    assert all(node["round_trip_us"] > 0 and node["uptime_ms"] > 0 for node in first["nodes"])
    hosts = [node["host"] for node in first["nodes"]]
    assert len(set(hosts)) == 2
    assert [(node["ring"]["state"], node["ring"]["normal"]) for node in first["nodes"]] == [("normal", 2)] * 2

    seen = terminal.run("status", "--verbose", "--contact", f"{prefix}.2")
    assert seen.returncode == 0, seen.stderr
    assert sorted(re.findall(r"^   host (\S+)$", seen.stdout, re.MULTILINE)) == sorted(hosts)
    lines = terminal.run("status").stdout.splitlines()
    assert re.match(r"cluster ebla   group 0: 1 of 1 voters up, leader node[12]   leases 1 of 1   topology v", lines[0])
    assert [line.split()[:2] for line in lines[-2:]] == [["UN", "node1"], ["UN", "node2"]]
    assert all(node["load_bytes"] > 0 and node["tablets"] == 0 and node["shards"] == 2 for node in first["nodes"])

    again = terminal.run("up", "--no-follow")
    assert again.returncode == 1
    assert "a node already runs in" in again.stderr

    down = terminal.run("down")
    assert down.stdout == "stopped node1, node2\n"
    code, stopped = terminal.status()
    assert code == 1
    assert [node["trouble"] for node in stopped["nodes"]] == ["stopped: asked to stop"] * 2
    assert terminal.run("down").stdout.startswith("nothing runs in")

    assert terminal.run("up", "--no-follow").returncode == 0
    code, second = terminal.status()
    assert (code, second["cluster"]) == (0, first["cluster"])
    assert [node["host"] for node in second["nodes"]] == hosts


@contextmanager
def running(command: list[str], **how: Any) -> Iterator["subprocess.Popen[Any]"]:
    """Killed if the test fails: waiting for it would hold up all tests."""
    with subprocess.Popen(command, **how) as process:
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def followed(terminal: Terminal, nodes: int, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Runs `ebla up` and waits until it has shown its last node."""
    command = terminal.command("up", *terminal.up_arguments(nodes), *arguments)
    with running(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as following:
        assert following.stdout is not None
        shown: list[str] = []
        while not shown or not re.match(rf"U[JN] node{nodes} ", shown[-1]):
            shown.append(following.stdout.readline())
            assert shown[-1], f"ended early: {shown}"
        yield following
        following.wait(20)
    assert following.returncode == 0
    assert all(node.is_gone() for node in find_nodes(terminal.data))


def test_ctrl_c_stops_what_up_follows(terminal: Terminal) -> None:
    with followed(terminal, 1) as following:
        following.send_signal(signal.SIGINT)
        rest, _ = following.communicate(timeout=60)
    assert "all nodes are stopped; their data is kept" in rest


def test_ctrl_c_is_over_in_time_where_nodes_are_killed_and_one_hangs(terminal: Terminal) -> None:
    """Two of three are dead, and the last does not react: `ebla up` waits for it, says so, and kills it."""
    with followed(terminal, 3, "--set", f"limits.stop_ms={STOP_MS}") as following:
        pids = [node.running_pid() for node in find_nodes(terminal.data)]
        for pid, number in zip(pids, (signal.SIGKILL, signal.SIGKILL, signal.SIGSTOP), strict=True):
            assert pid is not None
            os.kill(pid, number)
        following.send_signal(signal.SIGINT)
        began = time.monotonic()
        rest, _ = following.communicate(timeout=60)
        took_s = time.monotonic() - began
    assert re.search(rf"waiting for node3: process {pids[2]} has not ended; it is killed in \d\.\d s", rest), rest
    assert "node3 did not stop within 2.5 s: killed" in rest
    assert "node1 did" not in rest
    assert took_s < ASK_S + STOP_MS / 1000 + STOP_SLACK_S + KILL_S + BUSY_S


def test_an_up_that_is_ended_while_it_starts_leaves_nothing(terminal: Terminal) -> None:
    with running(
        terminal.command("up", *terminal.up_arguments(1)), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as starting:
        eventually(lambda: [node.running_pid() for node in find_nodes(terminal.data)] not in ([], [None]), "it runs")
        starting.terminate()
        starting.wait(60)
    (node,) = find_nodes(terminal.data)
    assert node.is_gone()


def test_closing_the_terminal_stops_what_up_follows(terminal: Terminal) -> None:
    master, slave = pty.openpty()
    command = terminal.command("up", *terminal.up_arguments(1))
    # A new session, whose terminal this becomes with the first use: its end then sends SIGHUP.
    code = "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"
    with running(
        [sys.executable, "-c", code, *command], stdin=slave, stdout=slave, stderr=slave, start_new_session=True
    ) as following:
        os.close(slave)
        shown = b""
        while b"uptime" not in shown:
            shown += os.read(master, 65_536)
        os.close(master)
        following.wait(60)
    (node,) = find_nodes(terminal.data)
    assert node.is_gone()


def test_a_node_that_cannot_start_is_told_with_its_log_and_the_others_are_ended(terminal: Terminal) -> None:
    assert terminal.run("up", "--no-follow", *terminal.up_arguments(2)).returncode == 0
    terminal.run("down")
    nodes = find_nodes(terminal.data)
    (nodes[1].folder.tls / "node.pem").write_text("not a certificate")
    up = terminal.run("up", "--no-follow")
    assert up.returncode == 1
    assert "node2 ended with status 1 while starting: " in up.stderr
    assert "certificates in" in up.stderr
    for node in nodes:
        eventually(node.is_gone, f"{node.name} is ended")


def test_a_node_joins_by_token_and_is_refused_without_one_or_with_a_wrong_one(
    terminal: Terminal, capsys: pytest.CaptureFixture[str]
) -> None:
    assert terminal.run("up", "--no-follow", *terminal.up_arguments(1)).returncode == 0
    prefix = terminal.base_address.rpartition(".")[0]
    folder = terminal.data / "node2"
    folder.mkdir(mode=0o700)
    (folder / "options.toml").write_text(f'data = "."\naddress = "{prefix}.2"\npeers = ["{prefix}.1"]\n')
    options = ["--options", str(folder / "options.toml")]
    token = terminal.run("token").stdout.strip()
    assert token.startswith("ebla-join-")

    for arguments, message in (
        ([], "it must join their cluster"),
        (["--join", "ebla-join-nonsense"], "not a join token"),
        (["--join", token[:-4] + ("AAAA" if not token.endswith("AAAA") else "BBBB")], "is not of this cluster"),
    ):
        assert run_process(["control", *options, *arguments]) == 1
        assert message in capsys.readouterr().err
        assert not (folder / "identity").exists()

    command = [sys.executable, "-m", "ebla", "node", *options, "--join", token]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as joined:
        try:
            nodes = find_nodes(terminal.data)
            eventually(lambda: all(answers(node) for node in nodes), "both answer")
            clusters = [node.folder.read_identity() for node in nodes]
            assert len({identity.cluster for identity in clusters if identity is not None}) == 1
            seen = terminal.run("status", "--contact", f"{prefix}.1", "--json")
            assert json.loads(seen.stdout)["cluster"] is not None
        finally:
            joined.terminate()
            joined.wait(60)
    assert joined.returncode == 0


def answers(node: LocalNode) -> bool:
    (asked,) = asyncio.run(probe_nodes([node]))
    return asked.answer is not None
