"""Every consistency level on real nodes of two datacenters, whole and with a node missing."""

import os
import signal
from collections.abc import Callable
from functools import partial

from tests.cluster.conftest import LocalNodes, eventually
from tests.cluster.rows_load import Numbers, TableSpec, create_table, read_once, write_once

from ebla.cli.cluster.local_cluster import LocalNode
from ebla.model.consistency import ConsistencyLevel as Level
from ebla.model.errors import EblaError, Unavailable

PLACES = ("east", "east", "west", "west")
BOTH = ("east", "west")
PATIENCE_S = 60.0

Make = Callable[..., LocalNodes]


def has_too_few(call: Callable[[], object]) -> bool | None:
    """None if it failed for another reason, as on a busy machine."""
    try:
        call()
    except EblaError as error:
        # CQL has one code for everything that is unavailable; the message names the replicas that are up.
        return True if isinstance(error, Unavailable) and "are up" in error.message else None
    return False


def refused_levels(node: LocalNode, rows: Numbers) -> tuple[list[Level], list[Level]] | None:
    """The levels at which too few replicas are up, for writes and for reads."""
    at = (node, 0)
    writes = {level: has_too_few(partial(write_once, rows, at, {1: 5}, level)) for level in Level}
    reads = {level: has_too_few(partial(read_once, rows, at, [1], level)) for level in Level}
    if None in (*writes.values(), *reads.values()):
        return None
    return [level for level in Level if writes[level]], [level for level in Level if reads[level]]


def must_refuse(node: LocalNode, rows: Numbers, *levels: Level) -> None:
    expected = (list(levels), list(levels))
    eventually(lambda: refused_levels(node, rows) == expected, f"{node.name} refuses {levels}", PATIENCE_S)


def test_each_level_counts_the_replicas_of_its_datacenters(make_nodes: Make) -> None:
    cluster = make_nodes(nodes=len(PLACES))
    for node, place in zip(cluster.nodes, PLACES):
        path = node.options_path
        path.write_text(path.read_text().replace('datacenter = "dc1"', f'datacenter = "{place}"'))
    cluster.start_all()
    east, west = cluster.nodes[0], cluster.nodes[2]
    tables = [
        create_table(east, TableSpec(keyspace="tablets", replicas=2, datacenters=BOTH)),
        create_table(east, TableSpec(keyspace="vnodes", replicas=2, on_tablets=False, datacenters=BOTH)),
    ]
    for rows in tables:
        must_refuse(east, rows)
        must_refuse(west, rows)
    os.kill(cluster.pid("control", 3), signal.SIGKILL)
    for rows in tables:
        must_refuse(east, rows, Level.ALL, Level.EACH_QUORUM)
        must_refuse(west, rows, Level.ALL, Level.LOCAL_QUORUM, Level.EACH_QUORUM)
        assert read_once(rows, (east, 0), [1], Level.QUORUM) == [5]
