"""`ebla status` in terminals of several widths and through a pipe, against files with the expected output."""

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest
from rich.console import Console
from tests.unit.cli.cluster.status_views import nothing_runs, three_nodes

from ebla.cli.cluster.status import show_view
from ebla.cli.cluster.status_table import LINE_MAX, status_fingerprint, status_lines
from ebla.client.cluster_view import ClusterView

GOLDEN = Path(__file__).parent / "golden"
ROOT = Path(__file__).parents[4]


SHOW = """
from rich.console import Console
from tests.unit.cli.cluster.status_views import three_nodes
from ebla.cli.cluster.status import show_view
show_view(three_nodes(), Console(highlight=False), verbose={verbose})
"""


def in_terminal(columns: int, *, verbose: bool = False) -> str:
    """What a pseudo terminal of this width receives, with its colours. A process of its own, because the width is that
    of the terminal behind its standard streams."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    kept = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    command = [sys.executable, "-c", SHOW.format(verbose=verbose)]
    subprocess.run(
        command,
        stdin=theirs,
        stdout=theirs,
        check=True,
        cwd=ROOT,
        timeout=60,
        env={**kept, "TERM": "xterm-256color", "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )
    os.close(theirs)
    received = os.read(ours, 65_536)
    os.close(ours)
    return received.decode().replace("\r\n", "\n")


def through_pipe(view: ClusterView, *, verbose: bool = False) -> str:
    reading, writing = os.pipe()
    with os.fdopen(reading, encoding="utf-8") as reader:
        with os.fdopen(writing, "w", encoding="utf-8") as pipe:
            show_view(view, Console(file=pipe, highlight=False, _environ={}), verbose=verbose)
        return reader.read()


@pytest.mark.parametrize("columns", [80, 100, 200])
def test_a_terminal_shows_a_head_what_is_wrong_and_one_line_per_node(columns: int) -> None:
    printed = in_terminal(columns)
    assert printed == (GOLDEN / f"status_{columns}.txt").read_text("utf-8")


def test_a_pipe_gets_every_column_without_colour() -> None:
    assert through_pipe(three_nodes()) == (GOLDEN / "status_pipe.txt").read_text("utf-8")


def test_the_details_are_there_for_those_who_ask() -> None:
    assert through_pipe(three_nodes(), verbose=True) == (GOLDEN / "status_verbose_pipe.txt").read_text("utf-8")
    assert in_terminal(80, verbose=True) == (GOLDEN / "status_verbose_80.txt").read_text("utf-8")


def test_a_cluster_that_does_not_run_has_a_line_per_node_and_the_reasons() -> None:
    assert through_pipe(nothing_runs()) == (
        "no node answers\n"
        "! node1: not running\n"
        "! node2: not running\n"
        "   node   address    dc/rack  load  tablets  shards  group 0  lag  uptime\n"
        "D? node1  127.0.0.1  –        –           –  –       –          –  –\n"
        "D? node2  127.0.0.2  –        –           –  –       –          –  –\n"
    )


@pytest.mark.parametrize("width", [*range(40, 130), None])
def test_no_line_of_a_node_breaks_at_any_width_or_is_longer_than_a_hundred_columns(width: int | None) -> None:
    view = three_nodes(rack="a-rack-with-a-long-name-for-no-reason", address="2001:db8:85a3::8a2e:370:733")
    nodes = [line.plain for line in status_lines(view, width)][-4:]
    assert [line[:2] for line in nodes] == ["  ", "UN", "UN", "DN"]
    assert max(map(len, nodes)) <= min(width or LINE_MAX, LINE_MAX)


@pytest.mark.parametrize(
    ("state", "letters"),
    [
        ("none", "DJ"),
        ("bootstrapping", "DJ"),
        ("replacing", "DJ"),
        ("normal", "DN"),
        ("decommissioning", "DL"),
        ("removing", "DL"),
        ("rebuilding", "DM"),
    ],
)
def test_letters_are_those_of_nodetool(state: str, letters: str) -> None:
    assert status_lines(three_nodes(state3=state))[-1].plain.startswith(letters)


def test_a_running_operation_and_a_lost_majority_are_in_the_head() -> None:
    head = status_lines(three_nodes(transition="write_both_read_old"))[0].plain
    assert "topology v42, write_both_read_old" in head
    assert "group 0: 2 of 3 voters up, leader node1" in head
    assert "leases 2 of 3" in head


def test_only_changes_that_are_shown_and_matter_are_news() -> None:
    assert status_fingerprint(three_nodes()) == status_fingerprint(three_nodes())
    assert status_fingerprint(three_nodes()) != status_fingerprint(three_nodes(transition="join_group0"))
    assert status_fingerprint(three_nodes()) != status_fingerprint(three_nodes(state3="removing"))
