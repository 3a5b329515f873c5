"""Errors of `ebla` before it starts anything. No test here starts a process."""

import errno
import random
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from ebla.cli.app import app
from ebla.cli.cluster.local_cluster import (
    LocalNode,
    NewClusterSpec,
    assign_identities,
    find_nodes,
    find_or_create_nodes,
    lock_data_folder,
)
from ebla.cli.cluster.node_calls import run_async
from ebla.cli.cluster.up import StartedCluster
from ebla.control.group0.join_state import JoinStage, JoinStateFile
from ebla.runtime import file_lock
from ebla.runtime.data_folder import DataFolder
from ebla.runtime.file_disk import FileDisk

NODES = 2


@pytest.fixture(autouse=True)
def nothing_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(_nodes: object, _say: object) -> StartedCluster:
        raise AssertionError("a node would have been started")

    monkeypatch.setattr("ebla.cli.cluster.up.bring_up", start)


@pytest.fixture
def made(tmp_path: Path) -> list[LocalNode]:
    """Two nodes that were started once."""
    base = f"127.{random.randrange(20, 250)}.{random.randrange(0, 250)}.1"
    nodes = find_or_create_nodes(
        tmp_path / "d", NewClusterSpec(nodes=NODES, shards=1, base_address=base, cluster_name="ebla")
    )
    assign_identities(nodes)
    return nodes


def refused(data: Path, *arguments: str) -> str:
    result = CliRunner().invoke(app, ["up", "--no-follow", "--data", str(data), *arguments])
    assert result.exit_code == 1, result.output
    assert result.stderr.startswith("ebla: ")
    return result.stderr


def in_use(node: LocalNode) -> str:
    return f"cannot listen on {node.options.control_address}: Address already in use; another process listens there"


@contextmanager
def listening(host: str, port: int) -> Iterator[None]:
    with socket.socket() as taken:
        taken.bind((host, port))
        taken.listen(1)
        yield


def test_a_port_in_use_is_refused(made: list[LocalNode]) -> None:
    address = made[1].options.control_address
    with listening(address.host, address.port):
        assert in_use(made[1]) in refused(made[0].folder.path.parent)
    shard = made[0].options.shard_address(0)
    with listening(shard.host, shard.port):
        assert f"cannot listen on {shard}: Address already in use" in refused(made[0].folder.path.parent)


def test_an_address_of_another_machine_is_refused(tmp_path: Path) -> None:
    output = refused(tmp_path / "d", "--base-address", "192.0.2.1")
    assert "cannot listen on 192.0.2.1:7000: Cannot assign requested address" in output
    assert "is not an address of this machine" in output


def test_a_folder_of_another_cluster_is_refused(made: list[LocalNode], tmp_path: Path) -> None:
    others = find_or_create_nodes(
        tmp_path / "other", NewClusterSpec(nodes=1, shards=1, base_address="127.0.0.1", cluster_name="ebla")
    )
    assign_identities(others)
    made[1].folder.identity.write_bytes(others[0].folder.identity.read_bytes())
    output = refused(made[0].folder.path.parent)
    assert f"{made[0].folder.path} belongs to cluster" in output
    assert f"and {made[1].folder.path} to cluster" in output


def test_a_folder_of_a_cluster_of_another_name_is_refused(made: list[LocalNode]) -> None:
    text = made[0].options_path.read_text().replace('cluster_name = "ebla"', 'cluster_name = "abel"')
    made[0].options_path.write_text(text)
    assert "belongs to cluster 'ebla', the options name 'abel'" in refused(made[0].folder.path.parent)


def newer_format(folder: DataFolder) -> None:
    folder.format.write_text("7\n")


def open_to_others(folder: DataFolder) -> None:
    folder.path.chmod(0o755)


def key_for_all(folder: DataFolder) -> None:
    (folder.tls / "node.key").chmod(0o644)


def broken_identity(folder: DataFolder) -> None:
    folder.identity.write_text("{")


def typing_error(folder: DataFolder) -> None:
    path = folder.path / "options.toml"
    path.write_text(path.read_text().replace("[limits]", "[limits]\nstop_s = 3\n"))


def no_space(folder: DataFolder) -> None:
    path = folder.path / "options.toml"
    path.write_text(path.read_text().replace("[limits]", f"[limits]\nfree_disk_bytes_min = {1 << 50}\n"))


@pytest.mark.parametrize(
    ("hurt", "output"),
    [
        (newer_format, "has format 7; this version of Ebla knows formats up to 2"),
        (open_to_others, "is open to other users (mode 755); it holds keys; chmod 700"),
        (key_for_all, "node.key is readable by others; chmod 600"),
        (broken_identity, "identity cannot be read"),
        (typing_error, "key `limits.stop_s` is unknown; did you mean `limits.stop_ms`?"),
        (no_space, "MiB free and needs 1073741824 MiB"),
    ],
)
def test_a_folder_that_cannot_be_used_is_refused(
    made: list[LocalNode], hurt: Callable[[DataFolder], None], output: str
) -> None:
    hurt(made[1].folder)
    assert output in refused(made[0].folder.path.parent)


@pytest.mark.parametrize(
    ("arguments", "output"),
    [
        (["--nodes", "0"], "0 nodes were requested; allowed are 1 to 250"),
        (["--base-address", "localhost"], "--base-address 'localhost' is no IP address"),
        (["--base-address", "255.255.255.255"], "--base-address '255.255.255.255' is no IP address"),
        (["--set", "limits.stop=1"], "did you mean `limits.stop_ms`?"),
        (["--set", "stop"], "is not of the form key=value"),
        (["--cluster-name", "a b"], "key `cluster_name` is 'a b'"),
        (["--shards", "0"], "key `shards` is 0; allowed is a whole number from 1 to 256"),
    ],
)
def test_wrong_flags_are_refused_and_leave_no_folder(tmp_path: Path, arguments: list[str], output: str) -> None:
    assert output in refused(tmp_path / "d", *arguments)
    assert not (tmp_path / "d").exists()


def test_a_cluster_of_another_size_and_a_folder_of_something_else_are_refused(
    made: list[LocalNode], tmp_path: Path
) -> None:
    data = made[0].folder.path.parent
    assert f"{data} holds a cluster of 2 nodes, and 5 were requested" in refused(data, "--nodes", "5")
    (tmp_path / "photos" / "node1").mkdir(parents=True)
    (tmp_path / "photos" / "node1" / "cat.jpg").touch()
    assert "is not empty and has no options.toml" in refused(tmp_path / "photos")
    (tmp_path / "file").touch()
    assert "is no folder" in refused(tmp_path / "file")


def test_two_at_once_in_one_folder_are_refused(made: list[LocalNode]) -> None:
    data = made[0].folder.path.parent
    with lock_data_folder(data):
        assert f"another `ebla up` or `ebla add-node` is running in {data}" in refused(data)
    with pytest.raises(AssertionError, match="a node would have been started"):
        CliRunner().invoke(app, ["up", "--no-follow", "--data", str(data)], catch_exceptions=False)


@pytest.mark.parametrize(
    ("contact", "output"),
    [
        ("", "--contact '' names no node"),
        (":", "--contact ':' names no node"),
        ("127.0.0.1:²", "has no valid port"),
        ("127.0.0.1:70000", "has no valid port"),
        ("a..b", "a..b:7000: "),
        ("/nowhere/control.sock", "/nowhere/control.sock: No such file or directory"),
    ],
)
def test_contacts_that_cannot_be_are_told(made: list[LocalNode], contact: str, output: str) -> None:
    data = made[0].folder.path.parent
    result = CliRunner().invoke(app, ["status", "--data", str(data), "--contact", contact])
    assert result.exit_code == 1
    assert result.stderr.startswith("ebla: ")
    assert output in result.stderr


def test_a_folder_of_another_user_is_told(made: list[LocalNode], monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(path: Path) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(file_lock, "find_lock_holder", forbidden)
    result = CliRunner().invoke(app, ["status", "--data", str(made[0].folder.path.parent)])
    assert result.exit_code == 1
    assert result.stderr.startswith(f"ebla: {made[0].folder.control_lock}: Permission denied\n")


def test_options_files_are_kept_and_identities_survive_a_second_preparation(made: list[LocalNode]) -> None:
    data = made[0].folder.path.parent
    before = [node.folder.read_identity() for node in made]
    made[0].options_path.write_text(made[0].options_path.read_text() + "\n# mine\n")
    again = find_or_create_nodes(
        data, NewClusterSpec(nodes=None, shards=9, base_address="127.0.0.1", cluster_name="other")
    )
    assert [node.options for node in again] == [node.options for node in made]
    assert assign_identities(again) == before
    assert again[0].options_path.read_text().endswith("# mine\n")


def test_a_first_start_that_was_interrupted_is_done_again_without_founding_a_second_cluster(
    made: list[LocalNode],
) -> None:
    founder = made[0].folder.read_identity()
    assert founder is not None
    made[1].folder.identity.unlink()
    _, second = assign_identities(made)
    assert second.cluster == founder.cluster
    for name in ("authority.pem", "authority.key"):
        assert (made[1].folder.tls / name).read_bytes() == (made[0].folder.tls / name).read_bytes()


@pytest.mark.parametrize("written", [0, 1, 2])
def test_options_that_a_killed_first_start_did_not_write_are_completed(tmp_path: Path, written: int) -> None:
    shape = NewClusterSpec(nodes=3, shards=1, base_address="127.9.9.1", cluster_name="ebla", overrides=("shards=3",))
    whole = find_or_create_nodes(tmp_path / "d", shape)
    for node in whole[written:]:
        node.options_path.rename(node.folder.path / ".options.toml.new")
    completed = find_or_create_nodes(tmp_path / "d", shape)
    assert [node.options for node in completed] == [node.options for node in whole]


def test_a_start_takes_up_nodes_that_run_and_refuses_a_cluster_that_is_up(
    made: list[LocalNode], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = made[0].folder.path.parent
    with file_lock.acquire(made[1].folder.control_lock):
        with pytest.raises(AssertionError, match="a node would have been started"):
            CliRunner().invoke(app, ["up", "--no-follow", "--data", str(data)], catch_exceptions=False)
    monkeypatch.setattr("ebla.cli.cluster.up.is_up", lambda _nodes: True)
    assert "a node already runs in" in refused(data)


@pytest.mark.parametrize("command", ["down", "status", "token"])
def test_a_folder_without_nodes_is_told(tmp_path: Path, command: str) -> None:
    result = CliRunner().invoke(app, [command, "--data", str(tmp_path)])
    assert result.exit_code == 1
    assert f"there are no nodes in {tmp_path}" in result.stderr


def test_status_of_nodes_that_do_not_run_says_so(made: list[LocalNode]) -> None:
    result = CliRunner().invoke(app, ["status", "--json", "--data", str(made[0].folder.path.parent)])
    assert result.exit_code == 1
    view = msgspec.json.decode(result.stdout)
    assert [(node["state"], node["trouble"]) for node in view["nodes"]] == [("down", "not running")] * 2
    assert len(find_nodes(made[0].folder.path)) == 1, "a node's own folder counts as a cluster of one"


def test_up_skips_nodes_that_have_left(made: list[LocalNode], monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[str] = []

    def start(nodes: Sequence[LocalNode], _print: object) -> StartedCluster:
        started.extend(node.name for node in nodes)
        return StartedCluster(nodes)

    monkeypatch.setattr("ebla.cli.cluster.up.bring_up", start)
    data = made[0].folder.path.parent
    leave(made[1])
    result = CliRunner().invoke(app, ["up", "--no-follow", "--data", str(data)])
    assert result.exit_code == 0, result.output
    assert started == ["node1"]
    assert f"node2 has left the cluster; it joins as a new node after: ebla reset-node {made[1].folder.path}" in (
        result.stdout
    )
    leave(made[0])
    assert "every node of this folder has left its cluster" in refused(data)


def leave(node: LocalNode) -> None:
    mark = JoinStateFile(FileDisk(), f"{node.folder.group0}-mark")
    run_async(mark.save(stage=JoinStage.REMOVED))
