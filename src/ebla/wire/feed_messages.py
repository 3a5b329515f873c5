"""What control and the other processes of its node tell each other about the topology, and what nodes ask one another.

A child follows the topology by a long poll: it names the revision it has, and is answered with whatever came after, at
once or when the wait is over. What it has done about a version it reports apart from that, as soon as it changes: a
barrier waits for these reports and must not wait for a poll to come around.
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
    """None: whole state, as after a start. With `after_key`: the revision of the whole state that is being sent."""
    down_seen: tuple[HostId, ...] = ()
    """The down hosts the child knows of; a difference is answered at once."""
    wait_ms: int = 1_000
    after_key: str = ""
    """In the middle of a whole state: the last key of the page before."""
    reported: int = 0
    """The serial of the last report that control took; one that does not know of it answers at once."""


class FeedAnswer(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """The changes up to `revision`, whole transactions, oldest first. `reset`: they are not changes but everything."""

    revision: Revision
    reset: bool
    changes: tuple[FeedChange, ...] = ()
    more: bool = False
    """Of a whole state: further pages follow, all of the same revision, or a new state begins."""
    down: tuple[HostId, ...] = ()
    """Nodes that this node's control holds to be down, sorted."""
    serving: bool = True
    """False: the node is stopping."""
    report_missing: bool = False
    """This control process has not been told how far the child is: it shall report again."""


class ChildReport(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """How far a child is with the newest version it has. Every field speaks of one moment."""

    name: str
    pid: int
    version: TopologyVersion
    """Installed: its requests are routed and served by it."""
    fence: TopologyVersion
    oldest_running: TopologyVersion
    """The oldest version that a request still running holds, as a router or as a replica; `version` where none does."""
    pending_replicas_open: bool
    """Every pending replica that the version names here takes writes."""
    closing_sessions: tuple[SessionId, ...] = ()
    """Guards are held of these, though they are no longer listed."""
    serial: int = 0
    """Grows with each report of this name, from one process to the next as well (it starts from the boot clock of the
    machine): a report that was overtaken, or comes from a process that is gone, says nothing new."""
    history: HistoryId | None = None
    """The history that `version` belongs to: of two, one line of versions says nothing about the other."""
    trouble: str = ""
    """Why the child does not get on to a later version."""


class ReadBarrierRequest(msgspec.Struct, frozen=True, array_like=True):
    """A child asks for a read barrier of group 0."""


class ReadBarrierAnswer(msgspec.Struct, frozen=True, array_like=True):
    revision: Revision


class NodeBarrierRequest(msgspec.Struct, frozen=True, array_like=True):
    """Answered once the barrier of this version holds on the node, with everything drained; or, with `drain` off, once
    every process of the node has installed it."""

    version: TopologyVersion
    drain: bool = True


class NodeBarrierAnswer(msgspec.Struct, frozen=True, array_like=True):
    version: TopologyVersion
    """What the node has; at least what was asked for."""
