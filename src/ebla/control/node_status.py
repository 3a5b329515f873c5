"""What a node tells about its processes and its topology, from what control has of them. Pure."""

from collections.abc import Mapping, Sequence

import msgspec

from ebla.topology.snapshot import Snapshot
from ebla.wire.feed_messages import ChildReport
from ebla.wire.verbs import ChildBeatRequest, ProcessStatus, TopologyStatus


def with_versions(
    statuses: Sequence[ProcessStatus], reports: Mapping[str, ChildReport], beats: Mapping[str, ChildBeatRequest]
) -> tuple[ProcessStatus, ...]:
    """What a predecessor of the same name said is not held to be its successor's."""
    return tuple(_with_version(one, reports.get(one.name), beats.get(one.name)) for one in statuses)


def _with_version(status: ProcessStatus, report: ChildReport | None, beat: ChildBeatRequest | None) -> ProcessStatus:
    known = report if report is not None and report.pid == status.pid else None
    return msgspec.structs.replace(
        status,
        version=None if known is None else known.version,
        serving=beat is not None and beat.pid == status.pid and beat.serving,
        trouble="" if known is None else known.trouble,
    )


def topology_status(snapshot: Snapshot, waits_for: str) -> TopologyStatus:
    nodes = tuple((node.host, node.state.value) for node in snapshot.members())
    transition = "" if snapshot.transition is None else snapshot.transition.value
    return TopologyStatus(
        version=snapshot.version, fence=snapshot.fence, nodes=nodes, transition=transition, waits_for=waits_for
    )
