"""Whether a barrier holds on a node, from what its processes last reported. Pure.

A barrier of version V holds once every shard and the bulk process

- has V, or a later version, installed: what it routes from now on, it routes by that;
- runs no request of an older version, neither as a router nor as the replica of a write;
- has every pending replica that its version names open for writes;
- holds no guard of a session that is no longer listed.

INV-ROWS-2 is that it routes and runs nothing older from then on, INV-ROWS-4 that it has the version and its replicas.

Each of the first, third and fourth stays true once it is: an installed version never goes back, and a session that is
gone gives no new guard. The second stays true for what the process routes itself. A write that somebody else routed by
an older version may still arrive, as long as the fence lets it: that is why whoever needs it to be over waits for the
barrier of a version whose fence is above it, and the process refuses what comes later.

Only reports made to the control process that asks are given here. So one that has just started knows of nothing and
lets nothing pass until each child has spoken to it; and a child that died keeps its place by its last report, which
holds a barrier up for whatever it did not say it had done, until its successor speaks. The successor starts only after
the dead one was reaped (it takes the same file lock), and with a state at least as new as any that this control gave
out: what the last report says is done stays done.
"""

from collections.abc import Mapping, Sequence

from ebla.model.identity import TopologyVersion
from ebla.wire.feed_messages import ChildReport

BULK = "bulk"
SHARD_PREFIX = "shard-"

Reports = Mapping[str, ChildReport]


def takes_part(child: str) -> bool:
    """Whether barriers wait for a child of this name: those through which data is read or written."""
    return child == BULK or child.startswith(SHARD_PREFIX)


def barrier_waits_for(version: TopologyVersion, expected: Sequence[str], reports: Reports) -> tuple[str, ...]:
    """What the barrier still waits for, in words; nothing: it holds."""
    waits = []
    for name in expected:
        report = reports.get(name)
        if report is None:
            waits.append(_unheard(name))
        else:
            checks = (
                version_behind(version, report),
                older_running(version, report),
                pending_closed(report),
                guards_held(report),
            )
            waits.extend(f"{name} {words}" for words in checks if words)
    return tuple(waits)


def not_installed(version: TopologyVersion, expected: Sequence[str], reports: Reports) -> tuple[str, ...]:
    """Who does not have the version yet, in words; nothing: every process has."""
    waits = []
    for name in expected:
        report = reports.get(name)
        if report is None:
            waits.append(_unheard(name))
        elif words := version_behind(version, report):
            waits.append(f"{name} {words}")
    return tuple(waits)


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
    return "" if report.pending_replicas_open else "has a pending replica that does not take writes yet"


def guards_held(report: ChildReport) -> str:
    if not report.closing_sessions:
        return ""
    return f"holds guards of closed sessions: {', '.join(str(session) for session in report.closing_sessions)}"


def _unheard(name: str) -> str:
    return f"{name} has not reported since this control process started"
