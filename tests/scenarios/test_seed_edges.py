"""The drawn diagrams against the edges of the document they follow, one by one; `docs/divergences.md` has the rest."""

import re
from pathlib import Path

import pytest

from ebla.topology.draw import Arrow, node_arrows, pages, tablet_arrows
from ebla.topology.states import TransitionKind

ROOT = Path(__file__).resolve().parents[2]

NODE_EDGES = """
none --> bootstrapping: join
none --> replacing: replace
[*] --> bs_join_group0
bs_join_group0 --> bs_left_token_ring: rollback
bs_join_group0 --> [*]: rejected
bs_join_group0 --> bs_commit_cdc_generation
bs_commit_cdc_generation --> bs_write_both_read_old
bs_commit_cdc_generation --> bs_left_token_ring: rollback
bs_write_both_read_old --> bs_write_both_read_new: streaming completed
bs_write_both_read_old --> bs_left_token_ring: rollback
bs_write_both_read_new --> [*]
bs_left_token_ring --> [*]
[*] --> rp_join_group0
rp_join_group0 --> rp_left_token_ring: rollback
rp_join_group0 --> rp_tablet_draining
rp_tablet_draining --> rp_write_both_read_old
rp_tablet_draining --> rp_left_token_ring: rollback
rp_join_group0 --> [*]: rejected
rp_write_both_read_old --> rp_write_both_read_new: streaming completed
rp_write_both_read_old --> rp_left_token_ring: rollback
rp_write_both_read_new --> [*]
rp_left_token_ring --> [*]
bootstrapping --> normal: operation succeeded
bootstrapping --> left: operation failed
replacing --> normal: operation succeeded
replacing --> left: operation failed
none --> left: topology coordinator rejects the node
normal --> rebuilding: rebuild
normal --> decommissioning: leave
normal --> removing: remove
[*] --> de_tablet_draining
de_tablet_draining --> de_rollback_to_normal: rollback
de_rollback_to_normal --> de_tablet_migration
de_tablet_draining --> de_write_both_read_old
de_tablet_migration --> [*]
de_write_both_read_old --> de_write_both_read_new: streaming completed
de_write_both_read_old --> de_rollback_to_normal: rollback
de_write_both_read_new --> de_left_token_ring
de_left_token_ring --> [*]
[*] --> re_tablet_draining
re_tablet_draining --> re_rollback_to_normal: rollback
re_rollback_to_normal --> re_tablet_migration
re_tablet_migration --> [*]
re_tablet_draining --> re_write_both_read_old
re_write_both_read_old --> re_write_both_read_new: streaming completed
re_write_both_read_old --> re_rollback_to_normal: rollback
re_write_both_read_new --> [*]
rebuilding --> normal: streaming completed
decommissioning --> left: operation succeeded
decommissioning --> normal: operation failed
removing --> left: operation succeeded
removing --> normal: operation failed
"""

TABLET_EDGES = """
[*] --> allow_write_both_read_old
allow_write_both_read_old --> write_both_read_old
write_both_read_old --> streaming
streaming --> write_both_read_new
write_both_read_new --> use_new
use_new --> cleanup
cleanup --> end_migration
end_migration --> [*]
allow_write_both_read_old --> cleanup_target: error
write_both_read_old --> cleanup_target: error
streaming --> cleanup_target: error
write_both_read_new --> if_state: error
if_state --> use_new: more new replicas
if_state --> cleanup_target: more old replicas
cleanup_target --> revert_migration
revert_migration --> [*]
"""

LINE = re.compile(r"\| (\w+) \| `([^`]+)` \| (added|removed) \| .+ \|")


def edges(text: str) -> list[str]:
    return text.strip().splitlines()


def listed_changes(diagram: str, change: str) -> list[str]:
    found = (LINE.fullmatch(line) for line in (ROOT / "docs" / "divergences.md").read_text().splitlines())
    return [match[2] for match in found if match and (match[1], match[3]) == (diagram, change)]


def drawn_nodes() -> list[str]:
    return [str(arrow) for arrows in node_arrows().values() for arrow in arrows]


def drawn_tablets(kind: TransitionKind) -> list[str]:
    return [str(arrow) for arrow in tablet_arrows(kind)]


DIAGRAMS = [
    pytest.param("nodes", edges(NODE_EDGES), drawn_nodes(), id="nodes"),
    pytest.param("tablets", edges(TABLET_EDGES), drawn_tablets(TransitionKind.MIGRATION), id="migration"),
    pytest.param("tablets", edges(TABLET_EDGES), drawn_tablets(TransitionKind.REBUILD), id="rebuild"),
    pytest.param("intranode", edges(TABLET_EDGES), drawn_tablets(TransitionKind.INTRANODE_MIGRATION), id="intranode"),
]


@pytest.mark.parametrize(("diagram", "seed", "drawn"), DIAGRAMS)
def test_every_edge_of_the_seed_is_drawn_or_listed_as_removed(diagram: str, seed: list[str], drawn: list[str]) -> None:
    removed = listed_changes(diagram, "removed")
    for edge in seed:
        assert (edge in drawn) is not (edge in removed), edge


@pytest.mark.parametrize(("diagram", "seed", "drawn"), DIAGRAMS)
def test_every_drawn_edge_is_the_seeds_or_listed_as_added(diagram: str, seed: list[str], drawn: list[str]) -> None:
    added = listed_changes(diagram, "added")
    assert len(set(drawn)) == len(drawn)
    for edge in drawn:
        assert (edge in seed) is not (edge in added), edge


@pytest.mark.parametrize(("diagram", "seed", "drawn"), DIAGRAMS)
def test_nothing_is_listed_that_is_not_so(diagram: str, seed: list[str], drawn: list[str]) -> None:
    assert set(listed_changes(diagram, "removed")) <= set(seed)
    assert set(listed_changes(diagram, "added")) <= set(drawn)


def test_the_drawn_files_are_fresh() -> None:
    folder = ROOT / "docs" / "diagrams"
    for name, text in pages().items():
        assert (folder / name).read_text() == text, f"{name} is stale: run python -m ebla.topology.draw"


def test_an_arrow_reads_as_mermaid() -> None:
    assert str(Arrow("a", "b")) == "a --> b"
    assert str(Arrow("a", "b", "why")) == "a --> b: why"
