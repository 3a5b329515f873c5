"""The status of a cluster for people: a head, what is wrong, and one line per node."""

from collections.abc import Sequence

from rich.text import Text

from ebla.cli.cluster.status_details import cluster_details, node_details
from ebla.cli.columns import TextColumn, joined, leave_out, line_width
from ebla.cli.figures import MISSING, duration, format_bytes
from ebla.client.cluster_view import LEADER, ClusterView, NodeStatus, NodeView
from ebla.ports.transfer_engine import EngineState
from ebla.topology.states import NodeState

LINE_MAX = 100
"""Columns of a node's line, also where the terminal is wider."""
CELL_MIN = 8
"""Columns that a cell keeps where it has to be shortened."""
SHORTENED = ("node", "address", "dc/rack")
HEAD_GAP = "   "
INDENT = " " * len("UN ")
STATE_COLOURS = {NodeStatus.UP: "green", NodeStatus.DOWN: "red"}
STATE_LETTERS = {
    NodeState.NONE: "J",
    NodeState.BOOTSTRAPPING: "J",
    NodeState.REPLACING: "J",
    NodeState.NORMAL: "N",
    NodeState.DECOMMISSIONING: "L",
    NodeState.REMOVING: "L",
    NodeState.LEFT: "L",
    NodeState.REBUILDING: "M",
}
"""As in nodetool: joining, normal, leaving, moving."""


def status_lines(view: ClusterView, terminal_width: int | None = None, *, verbose: bool = False) -> list[Text]:
    """Without a width: not for a terminal, so the head is one line, and every column is there."""
    problem_lines = [Text(f"! {line}", style="yellow") for line in _problem_lines(view)]
    names, *node_lines = _node_lines(view.nodes, terminal_width)
    lines = [*_head_lines(view, terminal_width), *problem_lines, names]
    for node, line in zip(view.nodes, node_lines):
        details = node_details(node) if verbose else []
        lines += [line, *(Text(f"{INDENT}{detail}", style="dim") for detail in details)]
    return [*lines, *(Text(detail) for detail in cluster_details(view))] if verbose else lines


def status_fingerprint(view: ClusterView) -> tuple[object, ...]:
    """Everything that is shown but the figures that change all the time. A view is printed again if this changes."""
    nodes = (
        (node.name, node.host, _letters(node), node.held_up_by, _shards(node), node.group0_role) for node in view.nodes
    )
    return (*nodes, *_head_parts(view), *_problem_lines(view))


# ---- the head


def _head_lines(view: ClusterView, width: int | None) -> list[Text]:
    """In a terminal, a part that does not fit begins a line."""
    lines: list[str] = []
    for part in _head_parts(view):
        if lines and (width is None or len(lines[-1]) + len(HEAD_GAP) + len(part) <= width):
            lines[-1] += f"{HEAD_GAP}{part}"
        else:
            lines.append(part)
    return [Text(line, style="bold") for line in lines]


def _head_parts(view: ClusterView) -> list[str]:
    transition = f", {view.transition}" if view.transition else ""
    parts = [
        "no node answers" if view.cluster_name is None else f"cluster {view.cluster_name}",
        "" if view.voters is None else f"group 0: {_voters(view)}",
        f"leases {view.lease_counts}" if view.lease_counts else "",
        "" if view.topology_version is None else f"topology v{view.topology_version}{transition}",
        "" if view.cluster_name is None else f"pipeline {view.pipeline.state}",
    ]
    return [part for part in parts if part]


def _voters(view: ClusterView) -> str:
    assert view.voters is not None
    leader = next((_label(node) for node in view.nodes if node.host == view.voters.leader), None)
    majority = "" if view.voters.has_majority else ", no majority"
    who = "no leader" if view.voters.leader is None else f"leader {leader or view.voters.leader}"
    return f"{view.voters.up} of {view.voters.count} voters up{majority}, {who}"


def _problem_lines(view: ClusterView) -> list[str]:
    lines = [f"{_label(node)}: {text}" for node in view.nodes for text in problems(node)]
    if view.pipeline.cause and view.pipeline.state != EngineState.STARTING:
        lines.append(f"pipeline: {view.pipeline.cause}")
    return lines


def problems(node: NodeView) -> tuple[str, ...]:
    """What an operator should know of a node: why it is down or does not serve, and what it warns of."""
    excluded = f"excluded {node.excluded}; {_way_out(node)}" if node.excluded else ""
    wrong = node.trouble or (f"not serving: {node.why_not_serving}" if node.why_not_serving else "")
    return tuple(text for text in (excluded, wrong, *node.warnings) if text)


def _way_out(node: NodeView) -> str:
    host = _host(node)
    if node.is_incomplete:
        removal = f"remove or replace it: ebla removenode {host}, or ebla add-node --replace {host}"
        return f"incomplete: it lacks rows and never serves again; {removal}"
    if node.excluded == "by a request":
        return f"see ebla topology; if it is to come back: ebla recover {host}"
    return f"ebla recover {host}"


# ---- one line per node


def _node_lines(nodes: Sequence[NodeView], terminal_width: int | None) -> list[Text]:
    lines = joined(_fit(_columns(nodes), terminal_width))
    letters = ["  ", *(_letters(node) for node in nodes)]
    colours = ["", *(STATE_COLOURS[node.state] for node in nodes)]
    return [
        Text.assemble((two, colour), f" {line}", style="" if colour else "dim")
        for two, colour, line in zip(letters, colours, lines)
    ]


def _columns(nodes: Sequence[NodeView]) -> list[TextColumn]:
    places = [f"{node.datacenter}/{node.rack}" if node.datacenter else MISSING for node in nodes]
    loads = [MISSING if node.load_bytes is None else format_bytes(node.load_bytes) for node in nodes]
    return [
        TextColumn(name="node", cells=[node.name or MISSING for node in nodes]),
        TextColumn(name="address", cells=[_host(node) for node in nodes]),
        TextColumn(name="dc/rack", cells=places, drop_rank=2),
        TextColumn(name="load", cells=loads, drop_rank=5),
        TextColumn(name="tablets", cells=[_number(node.tablets) for node in nodes], is_right=True, drop_rank=4),
        TextColumn(name="shards", cells=[_shards(node) for node in nodes], drop_rank=3),
        TextColumn(name="group 0", cells=[node.group0_role or MISSING for node in nodes]),
        TextColumn(name="lag", cells=[_number(_lag(node)) for node in nodes], is_right=True, drop_rank=1),
        TextColumn(name="uptime", cells=[duration(node.uptime_ms) for node in nodes]),
    ]


def _fit(columns: list[TextColumn], terminal_width: int | None) -> list[TextColumn]:
    """No line breaks: a narrow terminal loses columns, which `--verbose` has; then long cells are shortened."""
    limit = LINE_MAX if terminal_width is None else min(terminal_width, LINE_MAX)
    limit -= len(INDENT)
    if terminal_width is not None and terminal_width < LINE_MAX:
        columns = leave_out(columns, limit)
    while (over := line_width(columns) - limit) > 0:
        longest = max((one for one in columns if one.name in SHORTENED), key=lambda one: one.width)
        if longest.width <= CELL_MIN:
            break
        longest.shorten(max(CELL_MIN, longest.width - over))
    return columns


def _letters(node: NodeView) -> str:
    known = [letter for state, letter in STATE_LETTERS.items() if state == node.topology_state]
    # A node that the topology does not have is about to join; without a topology nothing is known.
    unknown = "?" if node.topology_state is None else "J"
    return ("U" if node.state is NodeStatus.UP else "D") + (known[0] if known else unknown)


def _label(node: NodeView) -> str:
    return node.name or _host(node)


def _host(node: NodeView) -> str:
    """Without the port, which is the same on every node."""
    return node.address.rpartition(":")[0].strip("[]") or node.address


def _shards(node: NodeView) -> str:
    shards = sum(process.is_shard for process in node.processes) if node.shards is None else node.shards
    if node.state is NodeStatus.UP and not node.processes:  # only others speak of it
        return f"{MISSING}/{shards}" if shards else MISSING
    return f"{node.shards_serving}/{shards}" if shards else MISSING


def _lag(node: NodeView) -> int | None:
    return None if node.group0 is None or node.group0_role == LEADER else node.group0.lag


def _number(value: int | None) -> str:
    return MISSING if value is None else str(value)
