"""Whether a barrier holds on a node, given what its processes last reported. Pure.

A barrier of version V holds once every shard and the bulk process

- has installed V or a later version: from now on it routes by that;
- runs no request of an older version, neither as a router nor as the replica of a write;
- has opened for writes every pending replica that its version names;
- holds no guard of a session that is no longer listed.

INV-ROWS-2 is that the process routes and runs nothing older from then on, INV-ROWS-4 that it has the version and its
replicas.

The first, third and fourth stay true once they are: an installed version never goes back, and a session that is gone
grants no new guard. The second stays true for requests that the process routes itself. A write that another process
routed by an older version may still arrive, as long as the fence lets it. A caller that needs such writes to be over
waits for the barrier of a version whose fence is above them; the process rejects what arrives later.

Only reports made to the control process that evaluates the barrier count. So a control process that has just started
lets no barrier pass until each child has reported to it. A child that died is represented by its last report, which
blocks a barrier for everything it did not confirm, until its successor reports. The successor starts only after the
dead process was reaped (it takes the same file lock), and with a state at least as new as any that this control process
sent: what the last report confirms stays confirmed.
"""

from collections.abc import Mapping, Sequence

from ebla.model.identity import TopologyVersion
from ebla.wire.feed_messages import ChildReport

BULK = "bulk"
SHARD_PREFIX = "shard-"

Reports = Mapping[str, ChildReport]


def takes_part(child: str) -> bool:
    """Whether barriers wait for a child of this name: one through which data is read or written."""
    return child == BULK or child.startswith(SHARD_PREFIX)


def barrier_waits_for(
    version: TopologyVersion, expected: Sequence[str], reports: Reports, *, drain: bool = True
) -> tuple[str, ...]:
    """What the barrier still waits for, for people; empty: it holds. With `drain` off: until all have installed the
    version."""
    reasons = []
    for name in expected:
        report = reports.get(name)
        if report is None:
            reasons.append(f"{name} has not reported since this control process started")
            continue
        checks = [version_behind(version, report)]
        if drain:
            checks += [older_running(version, report), pending_closed(report), guards_held(report)]
        reasons.extend(f"{name} {words}" for words in checks if words)
    return tuple(reasons)


def version_behind(version: TopologyVersion, report: ChildReport) -> str:
    if report.version >= version:
        return ""
    cause = f": {report.trouble}" if report.trouble else ""
    return f"has version {report.version}, not {version}{cause}"


def older_running(version: TopologyVersion, report: ChildReport) -> str:
    if report.oldest_running >= version:
        return ""
    return f"runs requests of version {report.oldest_running}"


def pending_closed(report: ChildReport) -> str:
    return "" if report.pending_replicas_open else "has a pending replica that does not accept writes yet"


def guards_held(report: ChildReport) -> str:
    if not report.closing_sessions:
        return ""
    return f"holds guards of closed sessions: {', '.join(str(session) for session in report.closing_sessions)}"
