"""What the nodes say of themselves beyond one line each, for `ebla status --verbose`."""

from ebla.cli.figures import MISSING
from ebla.client.cluster_view import ClusterView, NodeView, PipelineView, ProcessView
from ebla.wire.verbs import ProcessState


def node_details(node: NodeView) -> list[str]:
    """For a node that does not answer: what the others say of it."""
    place = f"{node.datacenter}/{node.rack}, " if node.datacenter else ""
    seen = f"seen up by {node.held_up_by}/{node.asked_others}, round trip {round_trip(node.round_trip_us)}"
    lines = [f"host {node.host or MISSING}", f"control {node.address}, {place}{seen}"]
    return [*lines, processes(node), group0(node), ring(node)] if node.processes else lines


def cluster_details(view: ClusterView) -> list[str]:
    return [f"cluster id: {view.cluster or MISSING}", f"leases: {view.leases}", f"pipeline: {pipeline(view.pipeline)}"]


def pipeline(view: PipelineView) -> str:
    """The state of the pipeline, in one line."""
    where = f" on {view.master}" if view.master else ""
    version = f", Spark {view.version}" if view.version else ""
    pages = f", {view.user_interface}" if view.user_interface else ""
    cause = f": {view.cause}" if view.cause else ""
    return f"{view.state}{where}{version}{pages}{cause}"


def processes(node: NodeView) -> str:
    return " ".join(_process(process) for process in node.processes)


def group0(node: NodeView) -> str:
    """The node's role in group 0, its term and indexes."""
    place = node.group0
    if place is None:
        return f"group0:{MISSING}"
    role = "leader" if place.leads else place.role if place.votes else "learner"
    lag = "" if place.lag is None else f" lag {place.lag}"
    return f"group0:{role} term {place.term} index {place.applied}/{place.commit}{lag}"


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
