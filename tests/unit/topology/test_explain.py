import sys
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from tests.unit.topology.world import World, cluster, host

from ebla.model.errors import InvalidRequest
from ebla.model.identity import Replica, ShardNumber, TableId
from ebla.topology import draw, explain, keys
from ebla.topology.commands import CreateKeyspace, CreateTable, StartMoves, TabletMove
from ebla.topology.explain import from_json, run, to_json
from ebla.topology.snapshot import Keyspace, Replication, Table
from ebla.topology.states import NodeRequestKind, Strategy, TransitionKind, TransitionState


def saved(world: World, folder: Path) -> str:
    path = folder / "snapshot.json"
    path.write_bytes(to_json(world.snapshot))
    return str(path)


def test_at_rest(tmp_path: Path) -> None:
    world, _ = cluster(2)
    world.create_table(2, 1)
    lines = list(run([saved(world, tmp_path)]))
    assert lines[0] == f"version {world.snapshot.version}, fence {world.snapshot.fence}, topology at rest"
    assert "next: ask balancer: nothing else is to be done" in lines
    assert "  if the balancer has no plan: rest: nothing is to be done" in lines
    assert not any("BROKEN" in line for line in lines)


def test_a_queue_with_its_reasons(tmp_path: Path) -> None:
    world, coordinator = cluster(3)
    world.ask(NodeRequestKind.REBUILD, 1)
    world.ask_to_join(world.node(4))
    lines = list(run([saved(world, tmp_path), "--down", str(host(2))]))
    assert any(line.startswith(f"  {host(2)}") and "down" in line for line in lines)
    assert any("next: start request: rebuild" in line for line in lines)
    assert any(f"join of {host(4)}" in line and "nodes down and not excluded" in line for line in lines)
    coordinator.step()
    lines = list(run([saved(world, tmp_path)]))
    assert any("barrier" in line or "admit" in line for line in lines)
    assert any(line.startswith("waiting: rebuild") for line in lines)


@pytest.mark.parametrize("number", [2, 3])
def test_a_node_that_leaves(tmp_path: Path, number: int) -> None:
    world, coordinator = cluster(4)
    world.create_table(4, 2)
    world.ask(NodeRequestKind.LEAVE, number)
    coordinator.step()
    lines = list(run([saved(world, tmp_path)]))
    assert f"  draining {host(number)}" in lines
    coordinator.until(TransitionState.WRITE_BOTH_READ_NEW)
    lines = list(run([saved(world, tmp_path)]))
    assert "  on failure repeated until it succeeds" in lines


def test_who_serves_a_token_of_a_tablet(tmp_path: Path) -> None:
    world, coordinator = cluster(3)
    table = world.create_table(2, 1)
    path = saved(world, tmp_path)
    lines = list(run([path, "--table", "ks.t", "--token", "5"]))
    assert lines[1].startswith("tablet 1 of 2")
    assert "not in transition: reads and writes go to its replicas" in lines
    new = (Replica(host(3), ShardNumber(0)),)
    world.do(StartMoves((TabletMove(table=table, tablet=1, kind=TransitionKind.MIGRATION, new_replicas=new),)))
    coordinator.step()
    lines = list(run([saved(world, tmp_path), "--table", "ks.t", "--token", "5"]))
    assert "migration in stage write_both_read_old: reads previous, writes both" in lines
    assert any(line.startswith(f"write also to (pending): {host(3)}") for line in lines)


def test_who_serves_a_token_of_a_vnode(tmp_path: Path) -> None:
    world, coordinator = cluster(2)
    keyspace = Keyspace(name="old", replication=Replication(Strategy.NETWORK_TOPOLOGY, (("dc1", 1),)), on_tablets=False)
    world.do(CreateKeyspace(keyspace))
    world.do(CreateTable(Table(id=TableId(world.new_id()), keyspace="old", name="t")))
    world.ask_to_join(world.node(3))
    coordinator.until(TransitionState.WRITE_BOTH_READ_OLD)
    token = world.snapshot.node(host(3)).tokens[0]
    lines = list(run([saved(world, tmp_path), "--table", "old.t", "--token", str(token)]))
    assert "on vnodes, write_both_read_old: reads go by the previous ring, writes by both" in lines
    assert any(line.startswith(f"write also to (pending): {host(3)}") for line in lines)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--table", "ks.t"], "go together"),
        (["--table", "ks.none", "--token", "5"], "known: ks.t"),
        (["--table", "ks.t", "--token", str(1 << 64)], "a token is from"),
        (["--down", "the-other-one"], f"no member the-other-one; known: {host(1)}"),
        (["--down", str(host(9))], "no member"),
    ],
)
def test_wrong_questions(tmp_path: Path, arguments: list[str], reason: str) -> None:
    world, _ = cluster(1)
    world.create_table(1, 1)
    with pytest.raises(InvalidRequest, match=reason):
        list(run([saved(world, tmp_path), *arguments]))


@pytest.mark.parametrize("text", [b"", b"[]", b'{"format": 9, "rows": {}}'])
def test_what_is_no_snapshot(text: bytes) -> None:
    with pytest.raises(InvalidRequest):
        from_json(text)


def test_the_commands_answer_with_an_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    world, _ = cluster(1)
    monkeypatch.setattr(sys, "argv", ["explain", saved(world, tmp_path)])
    assert explain.main() == 0
    assert "next: rest" in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", ["explain", str(tmp_path / "none.json")])
    assert explain.main() == 1
    assert "none.json" in capsys.readouterr().err


def test_diagrams_are_written_where_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["draw", str(tmp_path / "new")])
    assert draw.main() == 0
    assert {path.name for path in (tmp_path / "new").iterdir()} == set(draw.pages())


def test_diagrams_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(sys, "argv", ["draw", str(tmp_path / "file" / "folder")])
    assert draw.main() == 1
    assert "folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("gone", "reason"),
    [
        (keys.node_key(host(2)), "names node"),
        (keys.KEYSPACE, "names keyspace ks"),
        (keys.TABLE, "tablets are those of table"),
        (keys.REQUEST, "names request"),
    ],
)
def test_a_file_that_lacks_what_its_rows_name(gone: str, reason: str) -> None:
    world, coordinator = cluster(3)
    world.create_table(4, 3)
    world.ask(NodeRequestKind.REBUILD, 2)
    coordinator.step()
    whole = msgspec.json.decode(to_json(world.snapshot))
    rows = {key: row for key, row in whole["rows"].items() if not key.startswith(gone)}
    with pytest.raises(InvalidRequest, match=f"{reason}.*which is not in the file"):
        from_json(msgspec.json.encode({"format": 1, "rows": rows}))


def test_a_broken_snapshot_is_named_and_nothing_is_made_of_it(tmp_path: Path) -> None:
    world, _ = cluster(2)
    state = msgspec.structs.replace(world.snapshot.state, transition=TransitionState.JOIN_GROUP0)
    path = tmp_path / "snapshot.json"
    path.write_bytes(to_json(replace(world.snapshot, state=state)))
    lines = list(run([str(path)]))
    assert lines[-2:] == [
        "BROKEN INV-NODE-3: a node None while the topology is in join_group0",
        "next: cannot be told of a snapshot that is broken",
    ]


def test_the_example_beside_the_diagrams() -> None:
    example = str(Path(__file__).resolve().parents[3] / "docs" / "diagrams" / "example-snapshot.json")
    lines = list(run([example]))
    assert "topology tablet_draining" in lines[0]
    assert any(line.startswith("next: move tablets: tablets must leave") for line in lines)
    assert any(
        "in stage streaming" in line
        for line in run([example, "--table", "shop.orders", "--token", "-9000000000000000000"])
    )
