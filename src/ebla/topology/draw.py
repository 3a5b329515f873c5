"""The state diagrams, drawn from the tables as Mermaid.

    python -m ebla.topology.draw [FOLDER]      writes into docs/diagrams by default

A test draws them again and compares, so a table cannot change without its diagram.
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from ebla.topology.node_states import NODE_TABLE, NodeAction, NodeEdge, NodeEdgeCause, StatePair, node_edges
from ebla.topology.states import NodeState, TabletStage, TransitionKind, TransitionState
from ebla.topology.tablet_stages import EdgeCause, stage_edges

OUTSIDE = "[*]"
CHOICE = "if_state"
ABBREVIATIONS = {
    NodeState.BOOTSTRAPPING: "bs",
    NodeState.REPLACING: "rp",
    NodeState.DECOMMISSIONING: "de",
    NodeState.REMOVING: "re",
}
"""Mermaid needs unique names, so the name of a transition state contains the node state it is in."""


class Arrow(NamedTuple):
    source: str
    target: str
    label: str = ""

    def __str__(self) -> str:
        return f"{self.source} --> {self.target}{f': {self.label}' if self.label else ''}"


def node_arrows() -> dict[str, list[Arrow]]:
    """Arrows by the node state they are drawn in; the empty name holds those between node states."""
    arrows: dict[str, list[Arrow]] = {"": []}
    for edge in node_edges():
        for inside, arrow in _arrows_of(edge):
            drawn = arrows.setdefault(inside, [])
            if arrow not in drawn:
                drawn.append(arrow)
    arrows[""].append(Arrow(NodeState.NORMAL, NodeState.LEFT, "replaced"))
    return arrows


def _arrows_of(edge: NodeEdge) -> Iterator[tuple[str, Arrow]]:
    """One commit is an arrow inside a node state, an arrow between two node states, or both."""
    source, target = edge.source, edge.target
    assert source.state is not None
    assert target.state is not None
    if source.state is target.state:
        yield source.state, Arrow(_name(source), _name(target), _inner_label(edge))
        return
    if source.transition is not None:
        yield source.state, Arrow(_name(source), OUTSIDE, "rejected" if edge.cause is NodeEdgeCause.REJECTED else "")
    if target.transition is not None:
        yield target.state, Arrow(OUTSIDE, _name(target))
    yield "", Arrow(source.state, target.state, _outer_label(edge))


def _name(place: StatePair) -> str:
    assert place.state is not None
    assert place.transition is not None
    return f"{ABBREVIATIONS[place.state]}_{place.transition}"


def _inner_label(edge: NodeEdge) -> str:
    if edge.cause is NodeEdgeCause.FAILED:
        return "rollback"
    row = NODE_TABLE[edge.source.state, edge.source.transition]
    return "streaming completed" if row.action is NodeAction.STREAM else ""


def _outer_label(edge: NodeEdge) -> str:
    if edge.request is not None:
        return edge.request
    if edge.cause is NodeEdgeCause.REMOVED:
        return "removed without data"
    if edge.source.state is NodeState.NONE:
        return "topology coordinator rejects the node"
    if edge.source.state is NodeState.REBUILDING and edge.cause is NodeEdgeCause.DONE:
        return "streaming completed"
    joined = edge.source.state in (NodeState.BOOTSTRAPPING, NodeState.REPLACING)
    wanted = NodeState.NORMAL if joined else NodeState.LEFT
    return "operation succeeded" if edge.target.state is wanted else "operation failed"


def node_diagram() -> str:
    arrows = node_arrows()
    lines = ["stateDiagram-v2"]
    for inside, drawn in arrows.items():
        if not inside:
            continue
        lines.append(f"    state {inside} {{")
        names = dict.fromkeys(name for arrow in drawn for name in arrow[:2] if name != OUTSIDE)
        lines.extend(f"        {name} : {name.split('_', 1)[1]}" for name in names)
        lines.extend(f"        {arrow}" for arrow in drawn)
        lines.append("    }")
    lines.extend(f"    {arrow}" for arrow in arrows[""])
    return "\n".join(lines)


def tablet_arrows(kind: TransitionKind) -> list[Arrow]:
    arrows: list[Arrow] = []
    for edge in stage_edges(kind):
        source, target = edge.source or OUTSIDE, edge.target or OUTSIDE
        match edge.cause:
            case EdgeCause.FAILED:
                arrows.append(Arrow(source, target, "error"))
            case EdgeCause.CHOSE_FORWARD:
                arrows += [Arrow(source, CHOICE, "error"), Arrow(CHOICE, target, "more new replicas")]
            case EdgeCause.CHOSE_BACK:
                arrows.append(Arrow(CHOICE, target, "more old replicas"))
            case EdgeCause.STARTED | EdgeCause.DONE:
                arrows.append(Arrow(source, target))
    return arrows


def tablet_diagram(kind: TransitionKind) -> str:
    arrows = tablet_arrows(kind)
    lines = ["stateDiagram-v2"]
    if any(CHOICE in arrow[:2] for arrow in arrows):
        lines.append(f"    state {CHOICE} <<choice>>")
    lines.extend(f"    {arrow}" for arrow in arrows)
    return "\n".join(lines)


def topology_arrows() -> list[Arrow]:
    """The topology on its own, without a node in transition."""
    arrows: list[Arrow] = []
    for row in NODE_TABLE.values():
        if row.here.state is not None or row.here.transition is None:
            continue
        arrows.append(Arrow(OUTSIDE, row.here.transition))
        arrows.append(Arrow(row.here.transition, row.next.transition or OUTSIDE))
        if row.on_failure is not None:
            arrows.append(Arrow(row.here.transition, row.on_failure.transition or OUTSIDE, "request failed"))
    waiting = Arrow(TransitionState.TABLET_MIGRATION, TransitionState.TABLET_SPLIT_FINALIZATION, "a resize is ready")
    return [*arrows, waiting]


def topology_diagram() -> str:
    return "\n".join(["stateDiagram-v2", *(f"    {arrow}" for arrow in topology_arrows())])


def _promises() -> str:
    """The node table in words."""
    lines = ["| node | topology | barrier | session | what is done | promise |", "|---|---|---|---|---|---|"]
    for row in NODE_TABLE.values():
        cells = [
            row.here.state or "–",
            row.here.transition or "–",
            "yes" if row.barrier else "",
            "yes" if row.session else "",
            row.action,
            f"{row.label}: {row.promise}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _page(title: str, *parts: str) -> str:
    note = "Drawn by `python -m ebla.topology.draw` from the tables in `src/ebla/topology/`. Do not edit."
    return "\n\n".join([f"# {title}", note, *parts]) + "\n"


def _mermaid(diagram: str) -> str:
    return f"```mermaid\n{diagram}\n```"


def pages() -> dict[str, str]:
    """File names and their text."""
    unlike = [TabletStage.WRITE_BOTH_READ_OLD_FALLBACK_CLEANUP, TabletStage.WRITE_BOTH_READ_NEW]
    inside = f"Within one node there is no way back from {unlike[1]}, and no {unlike[0]}."
    explained = "What a given cluster would do next, and why: `python -m ebla.topology.explain SNAPSHOT.json`."
    return {
        "node-states.md": _page("Node states", explained, _mermaid(node_diagram()), _promises()),
        "topology-states.md": _page("The topology without a node in transition", _mermaid(topology_diagram())),
        "tablet-stages.md": _page(
            "Tablet stages",
            "Migration and rebuild:",
            _mermaid(tablet_diagram(TransitionKind.MIGRATION)),
            f"Intranode migration. {inside}",
            _mermaid(tablet_diagram(TransitionKind.INTRANODE_MIGRATION)),
        ),
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m ebla.topology.draw", description="Draw the state diagrams.")
    parser.add_argument("folder", nargs="?", type=Path, default=Path("docs/diagrams"))
    folder = parser.parse_args().folder
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in pages().items():
            (folder / name).write_text(text)
    except OSError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
