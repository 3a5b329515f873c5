"""cqlsh as users run it, and `ebla cqlsh`."""

import subprocess
import sys
from pathlib import Path

import pytest
from tests.drivers.conftest import DriverCluster, run_there

SCRIPT = """
CREATE KEYSPACE IF NOT EXISTS shell WITH replication = {'class': 'NetworkTopologyStrategy', 'replication_factor': 3};
USE shell;
CONSISTENCY QUORUM
DROP TABLE IF EXISTS t;
CREATE TABLE t (p int, c text, s int static, l list<int>, m map<text, frozen<set<int>>>, d decimal, u uuid, b blob,
  ts timestamp, da date, ti time, du duration, tu tuple<int, text>, f float, bo boolean, i inet, PRIMARY KEY (p, c))
  WITH CLUSTERING ORDER BY (c DESC) AND comment = 'of the shell';
INSERT INTO t (p, c, s, l, m, d, u, b, ts, da, ti, du, tu, f, bo, i) VALUES (1, 'a', 7, [1, 2], {'x': {1, 2}}, 1.50,
  123e4567-e89b-12d3-a456-426614174000, 0xcafe, '2026-01-02 03:04:05+0000', '2026-01-02', '03:04:05', 1mo2d3h,
  (1, 'one'), 0.5, true, '127.0.0.1');
BEGIN BATCH INSERT INTO t (p, c) VALUES (1, 'b'); UPDATE t SET l = l + [3] WHERE p = 1 AND c = 'a'; APPLY BATCH;
INSERT INTO t (p, c) VALUES (1, 'gone') USING TTL 1000;
DELETE FROM t WHERE p = 1 AND c = 'gone';
EXPAND ON
SELECT * FROM t WHERE p = 1;
EXPAND OFF
SELECT c, l, ttl(d) FROM t WHERE p = 1;
SELECT count(*) FROM t;
DESCRIBE TABLE t
DESCRIBE KEYSPACE shell
DESCRIBE TABLES
DESCRIBE CLUSTER
SHOW VERSION
TRACING OFF
PAGING 1
SELECT c FROM t WHERE p = 1;
TRUNCATE t;
SELECT count(*) AS left FROM t;
"""


def test_a_script(shared_cluster: DriverCluster, cassandra_environment: Path, tmp_path: Path) -> None:
    script = tmp_path / "script.cql"
    script.write_text(SCRIPT)
    done = run_there(cassandra_environment, "-m", "cqlshlib", shared_cluster.address, "-f", str(script))
    assert done.returncode == 0, done.stderr
    for expected in (
        "[1, 2, 3]", "{'x': {1, 2}}", "1.50", "123e4567-e89b-12d3-a456-426614174000", "0xcafe",
        "2026-01-02 03:04:05.000000+0000", "03:04:05.000000000", "1mo2d3h", "(1, 'one')", "127.0.0.1",
        "CREATE TABLE shell.t (", "CLUSTERING ORDER BY (c DESC)", "comment = 'of the shell'",
        "CREATE KEYSPACE shell WITH", "Murmur3Partitioner", "[cqlsh 6.2", "| Native protocol v4]",
    ):  # fmt: skip
        assert expected in done.stdout, expected
    assert "gone" not in done.stdout
    assert done.stdout.count("(1 rows)") >= 2


def test_errors_are_shown(shared_cluster: DriverCluster, cassandra_environment: Path) -> None:
    for statement, output in (
        ("SELECT * FROM no_such.t", "Keyspace 'no_such' does not exist"),
        ("SELEC", "line 1:0"),
        ("CREATE KEYSPACE system WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}", "system"),
    ):
        done = run_there(cassandra_environment, "-m", "cqlshlib", shared_cluster.address, "-e", statement)
        assert done.returncode == 2, statement
        assert output in done.stderr, statement


def test_rows_are_copied_out_and_in(shared_cluster: DriverCluster, cassandra_environment: Path, tmp_path: Path) -> None:
    written = tmp_path / "rows.csv"
    written.write_text("".join(f'{k},text {k},"[1, {k}]"\n' for k in range(200)))
    again = tmp_path / "again.csv"
    script = tmp_path / "copy.cql"
    script.write_text(
        "CREATE KEYSPACE IF NOT EXISTS shell WITH replication = "
        "{'class': 'NetworkTopologyStrategy', 'replication_factor': 3};\n"
        "CREATE TABLE IF NOT EXISTS shell.copied (k int PRIMARY KEY, l list<int>, v text);\n"
        "CONSISTENCY ALL\n"
        f"COPY shell.copied (k, v, l) FROM '{written}';\n"
        f"COPY shell.copied (k, v, l) TO '{again}';\n"
    )
    done = run_there(cassandra_environment, "-m", "cqlshlib", shared_cluster.address, "-f", str(script))
    assert done.returncode == 0, done.stderr
    assert sorted(again.read_text().splitlines()) == sorted(written.read_text().splitlines())


def test_ebla_cqlsh(shared_cluster: DriverCluster, cassandra_environment: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "ebla", "cqlsh"]
    data = ["--data", str(shared_cluster.data), "--environment", str(cassandra_environment)]
    done = subprocess.run(
        [*command, *data, "-e", "SELECT cluster_name FROM system.local"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "test" in done.stdout
    nothing = subprocess.run(
        [*command, "--data", str(tmp_path / "none")], capture_output=True, text=True, timeout=60, check=False
    )
    assert nothing.returncode == 1
    assert "no node of" in nothing.stderr


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT * FROM system.local; SELECT * FROM system.topology; SELECT * FROM system.tablets",
        "DESCRIBE FULL SCHEMA",
    ],
)
def test_what_operators_look_at(shared_cluster: DriverCluster, cassandra_environment: Path, statement: str) -> None:
    done = run_there(cassandra_environment, "-m", "cqlshlib", shared_cluster.address, "-e", statement)
    assert done.returncode == 0, done.stderr
