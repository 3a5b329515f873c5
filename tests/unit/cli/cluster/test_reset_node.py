"""`ebla reset-node`: what it removes and keeps, and what it refuses."""

import json
import random
import uuid
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner, Result

from ebla.cli.app import app
from ebla.cli.cluster.local_cluster import LocalNode, NewClusterSpec, assign_identities, find_or_create_nodes
from ebla.cli.cluster.node_calls import run_async
from ebla.cli.cluster.reset_node import ClusterContacts, cannot_join_as_it_is
from ebla.control.group0.join_state import JoinStage, JoinStateFile
from ebla.group0.join_messages import JoinNodeQueryAnswer, JoinRequestStatus
from ebla.model.errors import EblaError, Refused, Unavailable
from ebla.model.identity import Address, ClusterId, RequestId
from ebla.runtime import file_lock
from ebla.runtime.file_disk import FileDisk
from ebla.topology.states import NodeState, RequestOutcome

ATTEMPT = uuid.UUID(int=7)


@pytest.fixture
def node(tmp_path: Path) -> LocalNode:
    base = f"127.{random.randrange(20, 250)}.{random.randrange(0, 250)}.1"
    shape = NewClusterSpec(nodes=2, shards=1, base_address=base, cluster_name="ebla")
    nodes = find_or_create_nodes(tmp_path / "d", shape)
    assign_identities(nodes)
    stored = nodes[1].folder
    (stored.shard(0) / "layers").mkdir(parents=True)
    (stored.shard(0) / "layers" / "start").write_text("1")
    stored.group0.mkdir()
    stored.last_stop.write_text("rejected\n")
    stored.log.write_text("a log\n")
    return nodes[1]


class Members:
    """What the members say, one answer after another; the last one again and again."""

    def __init__(self, *answers: JoinNodeQueryAnswer | None) -> None:
        self.answers = list(answers)
        self.aborted: list[RequestId] = []
        self.refusal: EblaError | None = None

    async def query(self, _contacts: ClusterContacts, _known: Sequence[Address]) -> JoinNodeQueryAnswer | None:
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]

    async def abort(self, _contacts: ClusterContacts, request: RequestId, _known: Sequence[Address]) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.aborted.append(request)


def says(state: NodeState, outcome: RequestOutcome = RequestOutcome.RUNNING) -> JoinNodeQueryAnswer:
    request = JoinRequestStatus(attempt=ATTEMPT, outcome=outcome)
    return JoinNodeQueryAnswer(mode="group0", cluster=ClusterId(uuid.UUID(int=1)), state=state, request=request)


@pytest.fixture
def members(monkeypatch: pytest.MonkeyPatch) -> Members:
    one = Members(None)
    monkeypatch.setattr(ClusterContacts, "query", lambda self, known: one.query(self, known))
    monkeypatch.setattr(ClusterContacts, "abort", lambda self, request, known: one.abort(self, request, known))
    monkeypatch.setattr("ebla.cli.cluster.reset_node.POLL_S", 0.001)
    return one


def mark(node: LocalNode, stage: JoinStage) -> None:
    run_async(JoinStateFile(FileDisk(), f"{node.folder.group0}-mark").save(stage=stage))


def run(node: LocalNode, *arguments: str) -> Result:
    return CliRunner().invoke(app, ["reset-node", str(node.folder.path), *arguments])


def refused(node: LocalNode) -> str:
    before = node.folder.read_identity()
    result = run(node, "--yes")
    assert result.exit_code == 1, result.output
    assert node.folder.read_identity() == before
    assert node.folder.shard(0).exists()
    return result.stderr


def test_a_node_that_was_never_accepted_starts_over_as_a_new_host_of_the_same_cluster(
    node: LocalNode, members: Members
) -> None:
    mark(node, JoinStage.FRESH)
    old, authority = node.folder.read_identity(), (node.folder.tls / "authority.key").read_bytes()
    certificate, options = (node.folder.tls / "node.pem").read_bytes(), node.options_path.read_text()
    done = run(node, "--yes", "--json")
    assert done.exit_code == 0, done.output
    new = node.folder.read_identity()
    assert old is not None
    assert new is not None
    assert json.loads(done.stdout)["host"] == str(new.host) != str(old.host)
    assert new == msgspec.structs.replace(old, host=new.host)
    assert (node.folder.tls / "authority.key").read_bytes() == authority
    assert (node.folder.tls / "node.pem").read_bytes() != certificate, "it names the host"
    assert node.options_path.read_text() == options
    assert sorted(path.name for path in node.folder.path.iterdir()) == [
        "FORMAT",
        "identity",
        "options.toml",
        "run",
        "tls",
    ]
    assert not node.folder.last_stop.exists()
    assert node.folder.log.read_text() == "a log\n"


def test_shards_on_disks_of_their_own_are_emptied_and_kept(node: LocalNode, members: Members, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    node.folder.shard(0).rename(disk)
    node.folder.shard(0).symlink_to(disk)
    assert run(node, "--yes").exit_code == 0
    assert list(disk.iterdir()) == []
    assert node.folder.shard(0).is_symlink()


def test_it_asks_first_and_needs_yes_for_programs(node: LocalNode, members: Members) -> None:
    before = node.folder.read_identity()
    assert CliRunner().invoke(app, ["reset-node", str(node.folder.path)], input="n\n").exit_code == 1
    assert run(node, "--json").exit_code == 2
    assert node.folder.read_identity() == before
    assert CliRunner().invoke(app, ["reset-node", str(node.options_path)], input="y\n").exit_code == 0
    assert node.folder.read_identity() != before


def test_a_running_node_is_refused(node: LocalNode, members: Members) -> None:
    with file_lock.acquire(node.folder.shard_lock(0)):
        assert "runs" in refused(node)


def test_a_member_and_an_accepted_node_without_its_cluster_are_refused(node: LocalNode, members: Members) -> None:
    mark(node, JoinStage.MEMBER)
    assert "no member of its cluster can be reached" in refused(node)
    members.answers = [says(NodeState.NORMAL, RequestOutcome.DONE)]
    assert "it is a member, in the state normal" in refused(node)
    members.answers = [says(NodeState.LEFT, RequestOutcome.FAILED)]
    assert run(node, "--yes").exit_code == 0


def test_the_open_join_of_an_accepted_node_is_aborted_and_rolled_back_first(node: LocalNode, members: Members) -> None:
    mark(node, JoinStage.MEMBER)
    members.answers = [says(NodeState.BOOTSTRAPPING)]
    members.refusal = Refused("too late: reads use the new ring since version 57")
    assert "too late" in refused(node)
    members.refusal = None
    members.answers = [
        says(NodeState.BOOTSTRAPPING),
        says(NodeState.BOOTSTRAPPING, RequestOutcome.FAILED),
        says(NodeState.LEFT, RequestOutcome.FAILED),
    ]
    assert run(node, "--yes").exit_code == 0
    assert members.aborted == [ATTEMPT]


def test_a_node_that_was_not_accepted_is_reset_although_nobody_takes_the_abort(
    node: LocalNode, members: Members
) -> None:
    members.answers = [says(NodeState.NONE, RequestOutcome.PENDING)]
    members.refusal = Unavailable("no majority")
    assert run(node, "--yes").exit_code == 0


def test_only_a_node_whose_join_cannot_succeed_is_reset_by_up(node: LocalNode, members: Members) -> None:
    mark(node, JoinStage.FRESH)
    assert not cannot_join_as_it_is(node), "nobody knows it: it joins"
    members.answers = [says(NodeState.NONE, RequestOutcome.PENDING)]
    assert cannot_join_as_it_is(node)
    with file_lock.acquire(node.folder.control_lock):
        assert not cannot_join_as_it_is(node), "its process runs"
    mark(node, JoinStage.MEMBER)
    members.answers = [says(NodeState.BOOTSTRAPPING)]
    assert not cannot_join_as_it_is(node), "an accepted node continues"
    members.answers = [says(NodeState.LEFT, RequestOutcome.DONE)]
    assert not cannot_join_as_it_is(node), "it was in the ring and left it: its operator decides"
    members.answers = [says(NodeState.LEFT, RequestOutcome.FAILED)]
    assert cannot_join_as_it_is(node), "its join was rolled back"


def test_a_folder_without_a_node_is_an_error(tmp_path: Path, members: Members) -> None:
    missing = CliRunner().invoke(app, ["reset-node", str(tmp_path / "none"), "--yes"])
    assert missing.exit_code == 1
    assert "does not exist; name the node's folder" in missing.stderr
