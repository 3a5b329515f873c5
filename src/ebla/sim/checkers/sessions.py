"""The promises of bulk-job sessions, checked from outside every process.

INV-XFER-1  once a close is answered, no node that stayed up lists the session, except those that the answer names; and
            a node that has seen it open and closed never sees it open again, whatever attempts still run
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from ebla.model.identity import SessionId
from ebla.topology.invariants import violations, violations_between
from ebla.topology.snapshot import Snapshot

NodeLife = tuple[str, int]
"""A node's name and the number of its incarnation. A restarted node may show an older state for a while."""


@dataclass(slots=True, kw_only=True)
class SessionsRecord:
    opened: int = 0
    refused_late: int = 0
    closed: int = 0
    """How many closes were answered."""
    _over: dict[tuple[SessionId, NodeLife], None] = field(default_factory=dict)
    """Sessions that an incarnation has seen open and then closed."""
    _shown: dict[NodeLife, Snapshot] = field(default_factory=dict)

    def check_snapshots(self, shown: Mapping[NodeLife, Snapshot]) -> str | None:
        """The problem with what the nodes show now."""
        for incarnation, snapshot in shown.items():
            before = self._shown.get(incarnation, snapshot)
            for violation in (*violations(snapshot), *violations_between(before, snapshot)):
                return f"{incarnation[0]}: {violation}"
            self._shown[incarnation] = snapshot
            self._over.update({(each, incarnation): None for each in before.sessions if each not in snapshot.sessions})
            for session in snapshot.sessions:
                if (session, incarnation) in self._over:
                    return f"INV-XFER-1: {incarnation[0]} lists session {session} again"
        return None
