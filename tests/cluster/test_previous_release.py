"""The data folder of the previous release opens and holds what was written to it.

`fixtures/release-1.tar.xz` is the folder of one node with two shards. It was killed with SIGKILL, so that its commit
logs hold rows that no layer has. `WRITTEN` says what was written.
"""

import tarfile
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

from cassandra.cluster import Cluster
from tests.cluster.conftest import LocalNodes
from typer.testing import CliRunner

from ebla.cli.app import app

FOLDER = Path(__file__).parent / "fixtures" / "release-1.tar.xz"

WRITTEN = """
shop.orders, 4 tablets: ids 0 to 199 with lines 0 to 2, written at 1000; ids from 150 on are in the commit log only.
Deleted at 2000: line 1 of every tenth id, and the partitions 5, 55, 105 and 155. note of id 7, static, at 3000.
ring.events, on vnodes: 100 rows, with timeuuids in descending order within a day.
group 0: user/colour = blue.
"""

Make = Callable[..., LocalNodes]


def test_the_data_folder_of_the_previous_release_opens(tmp_path: Path, make_nodes: Make) -> None:
    with tarfile.open(FOLDER) as packed:
        packed.extractall(tmp_path / "c0", filter="tar")
    data = tmp_path / "c0" / "data"
    # The node's certificate in the folder is valid for a year, its authority for ten.
    renewed = CliRunner().invoke(app, ["renew", "--data", str(data)])
    assert renewed.exit_code == 0, renewed.output
    nodes = make_nodes(data=data)
    nodes.start_all()
    result = CliRunner().invoke(app, ["group0", "get", "user/colour", "--data", str(data)])
    assert (result.exit_code, result.stdout.split()[-1]) == (0, "blue"), result.output
    with Cluster([nodes.nodes[0].options.address]) as cluster:
        _check_rows(cluster.connect())


def _check_rows(session: Any) -> None:
    orders = session.execute("SELECT id, line, item, tags, total FROM shop.orders").all()
    found = {(row.id, row.line): (row.item, row.tags, row.total) for row in orders}
    assert found == {
        (order, line): (f"item {order}/{line}", {"a", f"t{order % 5}"}, Decimal(order) / 4)
        for order in range(200)
        for line in range(3)
        if not (order % 10 == 0 and line == 1) and order % 50 != 5
    }
    notes = session.execute("SELECT DISTINCT id, note FROM shop.orders").all()
    assert {row.id: row.note for row in notes if row.note is not None} == {7: "static"}
    (written,) = session.execute("SELECT WRITETIME(item) AS at FROM shop.orders WHERE id = 160 AND line = 2")
    assert written.at == 1000
    events = session.execute("SELECT day, at, body FROM ring.events").all()
    assert sorted(row.body for row in events) == sorted(bytes(range(number % 50)) for number in range(100))
    for day in {row.day for row in events}:
        at = [row.at.time for row in events if row.day == day]
        assert at == sorted(at, reverse=True), day
