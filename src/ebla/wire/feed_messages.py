"""Messages of the topology feed, between control and the other processes of its node, and barriers between nodes.

A child follows the topology by a long poll: it names the revision it has and is answered with all later changes, at
once or when the wait is over. It reports its own progress separately, as soon as it changes: a barrier waits for these
reports and must not wait for the next poll.
"""

import msgspec

from ebla.model.identity import HistoryId, HostId, SessionId, TopologyVersion
from ebla.model.transaction import Revision


class FeedChange(msgspec.Struct, frozen=True, array_like=True):
    """One key under `topology/`; `value` None: it was deleted."""

    key: str
    value: bytes | None
    revision: Revision


class FeedRequest(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    name: str
    pid: int
    after: Revision | None
    """None: send the whole state, as after a start. With `after_key`: the revision of the state being sent."""
    down_seen: tuple[HostId, ...] = ()
    """The down hosts that the child knows; a difference is answered at once."""
    wait_ms: int = 1_000
    after_key: str = ""
    """In the middle of a whole state: the last key of the previous page."""
    reported: int = 0
    """The serial of the last report that control accepted. A control that does not know it answers at once."""


class FeedAnswer(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """The changes up to `revision`: whole transactions, oldest first. `reset`: the whole state instead of changes."""

    revision: Revision
    reset: bool
    changes: tuple[FeedChange, ...] = ()
    more: bool = False
    """Of a whole state: more pages of the same revision follow, or a new state begins."""
    down: tuple[HostId, ...] = ()
    """Nodes that this node's control considers down, sorted."""
    serving: bool = True
    """False: the node is stopping."""
    report_missing: bool = False
    """This control process has no report of the child: it must report again."""


class ChildReport(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """The progress of a child with its newest version. All fields are of the same moment."""

    name: str
    pid: int
    version: TopologyVersion
    """The installed version, by which requests are routed and served."""
    fence: TopologyVersion
    oldest_running: TopologyVersion
    """The oldest version that a running request holds, in the router or a replica; `version` if there is none."""
    pending_replicas_open: bool
    """Every replica that is pending here in this version accepts writes."""
    closing_sessions: tuple[SessionId, ...] = ()
    """Sessions whose guards are held although they are no longer listed."""
    serial: int = 0
    """Grows with each report of this name, from one process to the next as well (it starts from the boot clock of the
    machine): a report that was overtaken, or comes from a process that has ended, is ignored."""
    history: HistoryId | None = None
    """The history of `version`: versions of two histories are not comparable."""
    trouble: str = ""
    """Why the child cannot install a later version."""


class ReadBarrierRequest(msgspec.Struct, frozen=True, array_like=True):
    """A child requests a read barrier of group 0."""


class ReadBarrierAnswer(msgspec.Struct, frozen=True, array_like=True):
    revision: Revision


class NodeBarrierRequest(msgspec.Struct, frozen=True, array_like=True):
    """Answered once the barrier of this version holds on the node, with everything drained; or, with `drain` off, once
    every process of the node has installed it."""

    version: TopologyVersion
    drain: bool = True


class NodeBarrierAnswer(msgspec.Struct, frozen=True, array_like=True):
    version: TopologyVersion
    """The version the node has; at least the requested one."""
