"""The status of a cluster for people: a table in a terminal, plain lines elsewhere."""

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from ebla.client.cluster_view import ClusterView, NodeStatus, NodeView, PipelineView, ProcessView
from ebla.wire.verbs import ProcessState

MISSING = "–"
COLOURS = {NodeStatus.UP: "green", NodeStatus.DOWN: "red"}


def as_table(view: ClusterView) -> Table:
    """Several lines per node, so that host ids fit a terminal of 80 columns."""
    title = None if view.cluster is None else f"cluster {view.cluster_name} ({view.cluster})"
    table = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.caption, table.caption_justify = Text(f"pipeline: {pipeline(view.pipeline)}"), "left"
    table.add_column("node", overflow="fold")
    table.add_column("state")
    for name in ("seen by", "round trip", "uptime"):
        table.add_column(name, justify="right", no_wrap=True)
    for node in view.nodes:
        where = Text.assemble((f"{node.name} {node.address}".strip(), "bold"), f"\n{node.host or MISSING}")
        table.add_row(
            Text.assemble(
                where,
                ("".join(f"\n{line}" for line in _details(node)), "dim"),
                ("".join(f"\n{line}" for line in _problems(node)), "yellow"),
            ),
            Text(node.state.value, style=COLOURS[node.state]),
            f"{node.held_up_by}/{node.asked_others}",
            round_trip(node.round_trip_us),
            duration(node.uptime_ms),
        )
    return table


def as_lines(view: ClusterView) -> list[str]:
    return [
        f"{node.name or MISSING} {node.address} {node.state.value} seen-up-by={node.held_up_by}/{node.asked_others} "
        f"round-trip={round_trip(node.round_trip_us)} uptime={duration(node.uptime_ms)} "
        f"host={node.host or MISSING} {' '.join((*_details(node), *_problems(node)))}"
        for node in view.nodes
    ] + [f"pipeline: {pipeline(view.pipeline)}"]


def view_fingerprint(view: ClusterView) -> tuple[object, ...]:
    """Everything but the figures that change all the time. A view is printed again if this changes."""
    nodes = (
        (node.name, node.host, node.state, node.held_up_by, processes(node), _role(node), ring(node), *_problems(node))
        for node in view.nodes
    )
    return (*nodes, pipeline(view.pipeline))


def pipeline(view: PipelineView) -> str:
    """The state of the pipeline, in one line."""
    where = f" on {view.master}" if view.master else ""
    version = f", Spark {view.version}" if view.version else ""
    pages = f", {view.user_interface}" if view.user_interface else ""
    cause = f": {view.cause}" if view.cause else ""
    return f"{view.state}{where}{version}{pages}{cause}"


def _details(node: NodeView) -> tuple[str, str, str]:
    return processes(node), group0(node), ring(node)


def _problems(node: NodeView) -> tuple[str, ...]:
    wrong = problem(node)
    return (*((wrong,) if wrong else ()), *(f"warning: {warning}" for warning in node.warnings))


def processes(node: NodeView) -> str:
    return " ".join(_process(process) for process in node.processes) or MISSING


def group0(node: NodeView) -> str:
    """The node's role in group 0, its term and indexes."""
    place = node.group0
    if place is None:
        return f"group0:{MISSING}"
    lag = "" if place.lag is None else f" lag {place.lag}"
    return f"group0:{_role(node)} term {place.term} index {place.applied}/{place.commit}{lag}"


def ring(node: NodeView) -> str:
    """The topology as the node has it: version, nodes in the ring, shards that serve."""
    place = node.ring
    if place is None:
        return f"topology:{MISSING}"
    shards = sum(process.is_shard for process in node.processes)
    transition = f" {place.transition}" if place.transition else ""
    return (
        f"topology:v{place.version}{transition} nodes {place.normal}/{place.members} "
        f"shards {node.shards_serving}/{shards}"
    )


def problem(node: NodeView) -> str:
    """What is wrong with the node; empty if nothing is."""
    if node.trouble:
        return node.trouble
    return f"not serving: {node.why_not_serving}" if node.why_not_serving else ""


def _role(node: NodeView) -> str:
    place = node.group0
    if place is None:
        return MISSING
    return "leader" if place.leads else f"{place.role}" if place.votes else "learner"


def _process(process: ProcessView) -> str:
    text = f"{process.name}:{process.pid or MISSING}"
    if process.version is not None:
        text += f"/v{process.version}"
    if process.state != ProcessState.RUNNING:
        text += f"({process.state})"
    if process.restarts:
        text += f"(restarts {process.restarts})"
    return text


def round_trip(microseconds: int | None) -> str:
    return MISSING if microseconds is None else f"{microseconds / 1000:.2f} ms"


def duration(milliseconds: int | None) -> str:
    if milliseconds is None:
        return MISSING
    seconds = milliseconds // 1000
    days, seconds = divmod(seconds, 86_400)
    hours, seconds = divmod(seconds, 3_600)
    minutes, seconds = divmod(seconds, 60)
    if days:
        return f"{days} d {hours} h"
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {seconds} s" if minutes else f"{seconds} s"
