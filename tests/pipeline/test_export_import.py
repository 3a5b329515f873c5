"""`ebla export` and `ebla import` against a node, with a Spark of their own: every type, nulls and empty values, and
a resume after a kill."""

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest
from tests.cluster.conftest import eventually
from tests.pipeline.small_node import PROGRAM_S, SmallNode

from ebla.cli.spark_jobs.export_plan import MANIFEST
from ebla.pipeline.java_process import descendants, is_running

COLUMNS = (
    "k int, c text, a ascii, b bigint, bl blob, bo boolean, d date, de decimal, do double, du duration, f float, "
    "i inet, s smallint, ti time, ts timestamp, tu timeuuid, ty tinyint, u uuid, v varint, t text, st text static, "
    "li list<int>, se set<text>, ma map<int, frozen<list<timestamp>>>, tp tuple<int, text>, "
    "fl frozen<map<text, frozen<set<blob>>>>, PRIMARY KEY (k, c)"
)
FULL = (
    "INSERT INTO files.{table} (k, c, a, b, bl, bo, d, de, do, du, f, i, s, ti, ts, tu, ty, u, v, t, "
    "st, li, se, ma, tp, fl) "
    "VALUES (1, 'x', 'abc', -9223372036854775808, 0x00ff10, true, '2026-02-28', 12345678901234567890.0123456789, 0.1, "
    "1mo2d3ns, 1.5, '2001:db8::1', -32768, '13:14:15.123456789', '2026-01-02 03:04:05.678+0000', "
    "50554d6e-29bb-11e5-b345-feff819cdc9f, -128, 123e4567-e89b-12d3-a456-426614174000, "
    "170141183460469231731687303715884105728, 'a \"quoted\", line\nand another', 'static', [3, 1, 2], "
    "{{'b', '', 'a'}}, {{7: ['1970-01-01 00:00:00.001+0000', '2030-06-07 08:09:10.111+0000']}}, (5, null), "
    "{{'': {{0x, 0xab}}, 'z': {{}}}})"
)
OTHERS = (
    "INSERT INTO files.{table} (k, c, t, bl) VALUES (1, '', '', 0x)",
    "INSERT INTO files.{table} (k, c, t, do, ts) VALUES (2, ' y ', ' NULL ', NaN, '-1000-01-01 00:00:00+0000')",
    "INSERT INTO files.{table} (k, st) VALUES (3, 'alone')",
    "INSERT INTO files.{table} (k, c, t) VALUES (-4, 'z', '\\N')",
)
COMPARED = "SELECT * FROM files.{table}"
ROWS = 200


@pytest.fixture(scope="module")
def node(small_node: SmallNode) -> SmallNode:
    small_node.cql("CREATE KEYSPACE files WITH replication = {'class': 'NetworkTopologyStrategy', 'dc1': 1}")
    return small_node


def ended_well(ended: subprocess.CompletedProcess[str]) -> dict[str, object]:
    assert ended.returncode == 0, f"{ended.stdout}\n{ended.stderr[-4000:]}"
    result: dict[str, object] = json.loads(ended.stdout.splitlines()[-1])
    return result


@pytest.mark.parametrize("kind", [pytest.param("parquet", marks=pytest.mark.long), "csv"])
def test_every_type_there_and_back(node: SmallNode, tmp_path: Path, kind: str) -> None:
    source, copy = f"from_{kind}", f"to_{kind}"
    for table in (source, copy):
        node.cql(f"CREATE TABLE files.{table} ({COLUMNS})")
    node.cql(*(statement.format(table=source) for statement in (FULL, *OTHERS)))
    folder = str(tmp_path / "out")
    result = ended_well(node.ebla("export", f"files.{source}", folder, "--format", kind, "--json"))
    assert result["rows"] == 5
    ended_well(node.ebla("import", folder, f"files.{copy}", "--json"))
    assert sorted(node.cql(COMPARED.format(table=copy))) == sorted(node.cql(COMPARED.format(table=source)))


def killed(node: SmallNode, manifest: Path, *arguments: str) -> None:
    """Kills it, with all processes it started, once a first piece is done."""
    process = node.start(*arguments)
    try:
        eventually(lambda: process.poll() is not None or _chunks(manifest), f"{arguments} has begun", PROGRAM_S)
        assert process.poll() is None, process.communicate()
    finally:
        below = descendants(process.pid)
        process.kill()
        process.communicate()
        for mark in below:
            if is_running(mark):
                os.kill(mark.pid, signal.SIGKILL)
        eventually(lambda: not any(is_running(mark) for mark in below), "what it started is gone")


def _chunks(manifest: Path) -> list[dict[str, list[str]]]:
    found: list[dict[str, list[str]]] = json.loads(manifest.read_text())["chunks"] if manifest.exists() else []
    return found


def test_what_was_killed_goes_on(node: SmallNode, tmp_path: Path) -> None:
    rows = " ".join(f"INSERT INTO files.many (k, v) VALUES ({number}, 'value');" for number in range(ROWS))
    node.cql("CREATE TABLE files.many (k int PRIMARY KEY, v text)", f"BEGIN UNLOGGED BATCH {rows} APPLY BATCH")
    folder = tmp_path / "out"
    killed(node, folder / MANIFEST, "export", "files.many", str(folder), "--pieces", "6")
    done = _chunks(folder / MANIFEST)
    assert 1 <= len(done) < 6
    (folder / "ffff-left-behind.parquet").write_bytes(b"half")
    result = ended_well(node.ebla("export", "files.many", str(folder), "--pieces", "2", "--json"))
    assert result["rows"] == ROWS
    after = _chunks(folder / MANIFEST)
    assert after[: len(done)] == done
    names = {name for chunk in after for name in chunk["files"]}
    assert {path.name for path in folder.iterdir() if not path.name.startswith(".")} == {*names, MANIFEST}


@pytest.mark.long
def test_a_job_whose_end_was_not_noted_is_not_run_again(node: SmallNode, tmp_path: Path) -> None:
    node.cql("CREATE TABLE files.noted (k int PRIMARY KEY, v text)")
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.csv").write_text("k,v\n1,one\n2,two\n")
    ended_well(node.ebla("import", str(folder), "files.noted", "--json"))
    note = tmp_path / "in.import-files.noted.json"
    state = json.loads(note.read_text())
    assert state["done"] == [0]
    note.write_text(json.dumps(state | {"done": []}))
    node.cql("DELETE FROM files.noted WHERE k = 1")
    ended_well(node.ebla("import", str(folder), "files.noted", "--json"))
    assert len(node.cql("SELECT k FROM files.noted")) == 1, "the cluster knew the job as done"


def test_errors_are_words(node: SmallNode, tmp_path: Path) -> None:
    node.cql("CREATE TABLE files.wrong (k int PRIMARY KEY, v int)")
    folder = tmp_path / "in"
    folder.mkdir()
    cases = {
        ("export", "files.nothing", str(tmp_path / "x")): "has no table 'nothing'",
        ("export", "files.wrong", str(folder.parent)): "is not empty, and has no export in it",
        ("import", str(folder), "files.wrong"): "neither .parquet nor .csv",
        ("export", "wrong", str(tmp_path / "x")): "KEYSPACE.TABLE",
    }
    for arguments, words in cases.items():
        ended = node.ebla(*arguments)
        assert ended.returncode == 1, (arguments, ended)
        assert words in ended.stderr, (arguments, ended.stderr)
        assert "Traceback" not in ended.stderr
    (folder / "a.csv").write_text("k,v\n1,one\n")
    ended = node.ebla("import", str(folder), "files.wrong")
    assert ended.returncode == 1
    assert "'one'" in ended.stderr, ended.stderr
    assert "Traceback" not in ended.stderr
    assert node.cql("SELECT * FROM files.wrong") == []
