"""The map of keys: the document says what the code says, and the code names what is really stored."""

from pathlib import Path
from typing import get_args

from ebla.control.group0_server import CLUSTER_KEY, ClusterIdentity
from ebla.group0.keys import PREFIXES, owner_of
from ebla.group0.members import Member
from ebla.topology import keys as topology_keys

DOCUMENT = Path(__file__).parents[3] / "docs" / "group0.md"


def test_the_document_holds_the_map_row_by_row() -> None:
    rows = [line for line in DOCUMENT.read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    shown = [
        f"| `{row.prefix}` | {', '.join(f'`{name}`' for name in row.structs) or '—'} | {row.holds} | {row.owner} |"
        for row in PREFIXES
    ]
    assert [row for row in rows if row.count("|") == 5] == shown


def test_every_struct_of_the_topology_and_of_group_0_itself_has_a_row() -> None:
    stored = {kind.__name__ for kind in (*get_args(topology_keys.Row), Member, ClusterIdentity)}
    assert {name for row in PREFIXES for name in row.structs} == stored


def test_every_key_of_the_topology_belongs_to_a_row_of_its_own() -> None:
    names = ("STATE", "NODE", "REQUEST", "SESSION", "CDC", "KEYSPACE", "TABLE", "TABLETS")
    for prefix in (getattr(topology_keys, name) for name in names):
        row = owner_of(f"{prefix}x")
        assert row is not None
        assert row.prefix == prefix
    assert [row.prefix for row in (owner_of(CLUSTER_KEY), owner_of("members/x"), owner_of("user/x")) if row] == [
        "cluster/identity", "members/", "user/"
    ]  # fmt: skip
    assert owner_of("elsewhere/x") is None
