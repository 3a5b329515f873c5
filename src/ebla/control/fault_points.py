"""Fault points: named places in the code at which a test stops, fails or kills a running node.

The code calls `reach` at each of them. That does nothing unless an operator has set the point, which only a node with
the option `fault_points` allows.
"""

import asyncio
import difflib
import enum
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import assert_never

from ebla.model.errors import EblaError, InvalidRequest, Outcome, Refused
from ebla.observe.event_reporter import EventReporter
from ebla.wire.fault_messages import FaultAction, FaultAnswer, FaultKind, FaultPointView, FaultRequest
from ebla.wire.server import IncomingCall, Server
from ebla.wire.verbs import FAULT

PAUSE_S_MAX = 600.0


class FaultPoint(enum.StrEnum):
    """Each is reached after the step in its name."""

    PURGE_TENTATIVE = "purge.tentative"
    PURGE_PREPARED = "purge.prepared"
    PURGE_PUSHED = "purge.pushed"
    PURGE_EFFECTIVE = "purge.effective"
    ATOMIC_LOCKED = "atomic.locked"
    ATOMIC_KEYS = "atomic.keys"
    ATOMIC_MEMBERS = "atomic.members"
    ATOMIC_DELETED = "atomic.deleted"
    ACTIVITY_CANCELLED = "activity.cancelled"
    """What waits here ignores its cancellation."""
    JOIN_REQUEST_RECEIVED = "join.request_received"
    JOIN_SUBMITTED = "join.submitted"
    JOIN_RESPONSE_SENT = "join.response_sent"
    JOIN_RESPONSE_RECEIVED = "join.response_received"
    JOIN_GROUP0_STARTED = "join.group0_started"
    JOIN_GROUP0_ENTERED = "topology.join_group0.entered"
    JOIN_GROUP0_AFTER_BARRIER = "topology.join_group0.after_barrier"
    JOIN_GROUP0_AFTER_ACTION = "topology.join_group0.after_action"
    JOIN_GROUP0_BEFORE_COMMIT = "topology.join_group0.before_commit"
    COMMIT_CDC_GENERATION_ENTERED = "topology.commit_cdc_generation.entered"
    COMMIT_CDC_GENERATION_AFTER_BARRIER = "topology.commit_cdc_generation.after_barrier"
    COMMIT_CDC_GENERATION_AFTER_ACTION = "topology.commit_cdc_generation.after_action"
    COMMIT_CDC_GENERATION_BEFORE_COMMIT = "topology.commit_cdc_generation.before_commit"
    WRITE_BOTH_READ_OLD_ENTERED = "topology.write_both_read_old.entered"
    WRITE_BOTH_READ_OLD_AFTER_BARRIER = "topology.write_both_read_old.after_barrier"
    WRITE_BOTH_READ_OLD_AFTER_ACTION = "topology.write_both_read_old.after_action"
    WRITE_BOTH_READ_OLD_BEFORE_COMMIT = "topology.write_both_read_old.before_commit"
    WRITE_BOTH_READ_NEW_ENTERED = "topology.write_both_read_new.entered"
    WRITE_BOTH_READ_NEW_AFTER_BARRIER = "topology.write_both_read_new.after_barrier"
    WRITE_BOTH_READ_NEW_AFTER_ACTION = "topology.write_both_read_new.after_action"
    WRITE_BOTH_READ_NEW_BEFORE_COMMIT = "topology.write_both_read_new.before_commit"
    LEFT_TOKEN_RING_ENTERED = "topology.left_token_ring.entered"  # noqa: S105  # a state, not a secret
    LEFT_TOKEN_RING_AFTER_BARRIER = "topology.left_token_ring.after_barrier"  # noqa: S105  # a state, not a secret
    LEFT_TOKEN_RING_AFTER_ACTION = "topology.left_token_ring.after_action"  # noqa: S105  # a state, not a secret
    LEFT_TOKEN_RING_BEFORE_COMMIT = "topology.left_token_ring.before_commit"  # noqa: S105  # a state, not a secret
    TABLET_DRAINING_ENTERED = "topology.tablet_draining.entered"
    TABLET_DRAINING_AFTER_BARRIER = "topology.tablet_draining.after_barrier"
    TABLET_DRAINING_AFTER_ACTION = "topology.tablet_draining.after_action"
    TABLET_DRAINING_BEFORE_COMMIT = "topology.tablet_draining.before_commit"
    ROLLBACK_TO_NORMAL_ENTERED = "topology.rollback_to_normal.entered"
    ROLLBACK_TO_NORMAL_AFTER_BARRIER = "topology.rollback_to_normal.after_barrier"
    ROLLBACK_TO_NORMAL_AFTER_ACTION = "topology.rollback_to_normal.after_action"
    ROLLBACK_TO_NORMAL_BEFORE_COMMIT = "topology.rollback_to_normal.before_commit"
    TABLET_MIGRATION_ENTERED = "topology.tablet_migration.entered"
    TABLET_MIGRATION_AFTER_BARRIER = "topology.tablet_migration.after_barrier"
    TABLET_MIGRATION_AFTER_ACTION = "topology.tablet_migration.after_action"
    TABLET_MIGRATION_BEFORE_COMMIT = "topology.tablet_migration.before_commit"
    LEAVE_REQUEST_DONE = "leave.request_done"
    LEAVE_STOP_SENT = "leave.stop_sent"
    REBUILD_STARTED = "rebuild.started"
    REBUILD_AFTER_ACTION = "rebuild.after_action"
    REBUILD_BEFORE_COMMIT = "rebuild.before_commit"
    STREAM_OPENED = "stream.opened"
    STREAM_CHECKPOINTED = "stream.checkpointed"
    STREAM_BEFORE_SEAL = "stream.before_seal"
    STREAM_BEFORE_ADOPT = "stream.before_adopt"
    GAIN_BEFORE_MANIFEST = "gain.before_manifest"
    GAIN_AFTER_MANIFEST = "gain.after_manifest"


SHARD_POINTS = "gain."
"""The prefix of the fault points that shards reach."""
PURGE_POINTS = tuple(point for point in FaultPoint if point.startswith("purge."))


class FaultInjected(EblaError):
    """A fault point was set to fail. What came before it has happened."""

    outcome = Outcome.UNKNOWN


@dataclass(slots=True, kw_only=True)
class _SetFault:
    kind: FaultKind
    once: bool
    waiting: int = 0
    released: asyncio.Event = field(default_factory=asyncio.Event)


class FaultPoints:
    def __init__(self, crash: Callable[[], object], report: EventReporter, *, is_enabled: bool) -> None:
        """`crash` ends the process at the latest when the caller waits next."""
        self._crash = crash
        self._report = report
        self._is_enabled = is_enabled
        self._faults: dict[FaultPoint, _SetFault] = {}
        self._reached = dict.fromkeys(FaultPoint, 0)

    def serve_on(self, server: Server) -> None:
        server.serve(FAULT, self._serve)

    async def _serve(self, request: FaultRequest, _call: IncomingCall) -> FaultAnswer:
        if request.action is FaultAction.REACH:
            await self.reach(_point_of(request.name))
        return self.execute(request)

    async def reach(self, point: FaultPoint) -> None:
        """Raises `FaultInjected` if the point is set to fail."""
        fault = self._faults.get(point)
        if fault is None or (fault.once and fault.waiting):
            return
        self._reached[point] += 1
        self._report("fault.reached", {"point": str(point), "kind": str(fault.kind)})
        match fault.kind:
            case FaultKind.PAUSE:
                await self._pause(point, fault)
            case FaultKind.FAIL:
                self._forget(point, fault)
                raise FaultInjected(f"the fault point {point} is set to fail")
            case FaultKind.CRASH:
                self._crash()
                await asyncio.sleep(PAUSE_S_MAX)
            case _ as never:
                assert_never(never)

    def set(self, point: FaultPoint, kind: FaultKind, *, once: bool = False) -> None:
        """Replaces what was set there, and releases what waits there."""
        self.release(point)
        self._faults[point] = _SetFault(kind=kind, once=once)

    def release(self, point: FaultPoint) -> None:
        """Unsets the point; what waits there goes on."""
        fault = self._faults.pop(point, None)
        if fault is not None:
            fault.released.set()

    def set_points(self, prefix: str) -> tuple[FaultPoint, ...]:
        """Those of this prefix at which something happens."""
        return tuple(point for point in self._faults if point.startswith(prefix))

    def points(self) -> tuple[FaultPointView, ...]:
        return tuple(self._view(point) for point in FaultPoint)

    async def _pause(self, point: FaultPoint, fault: _SetFault) -> None:
        fault.waiting += 1
        try:
            async with asyncio.timeout(PAUSE_S_MAX):
                await fault.released.wait()
        except TimeoutError:
            self._report("fault.pause_ended", {"point": str(point), "after_s": PAUSE_S_MAX})
        finally:
            fault.waiting -= 1
            self._forget(point, fault)

    def _forget(self, point: FaultPoint, fault: _SetFault) -> None:
        """Another fault may be set at the point by now."""
        if fault.once and self._faults.get(point) is fault:
            del self._faults[point]

    def _view(self, point: FaultPoint) -> FaultPointView:
        fault, reached = self._faults.get(point), self._reached[point]
        if fault is None:
            return FaultPointView(name=point, reached=reached)
        return FaultPointView(name=point, kind=fault.kind, once=fault.once, waiting=fault.waiting, reached=reached)

    def execute(self, request: FaultRequest) -> FaultAnswer:
        """An operator's command."""
        if not self._is_enabled:
            raise Refused(
                "this node has no fault points: it runs without the option `fault_points`",
                advice="set `fault_points = true` in the options of a test cluster and start the node again",
            )
        match request.action:
            case FaultAction.LIST | FaultAction.REACH:
                pass
            case FaultAction.SET:
                self.set(_point_of(request.name), request.kind, once=request.once)
            case FaultAction.RELEASE:
                self.release(_point_of(request.name))
            case FaultAction.CLEAR:
                for point in FaultPoint:
                    self.release(point)
            case _ as never:
                assert_never(never)
        return FaultAnswer(self.points())


def _point_of(name: str) -> FaultPoint:
    try:
        return FaultPoint(name)
    except ValueError:
        close = difflib.get_close_matches(name, list(FaultPoint), n=1, cutoff=0.5)
        advice = f"did you mean {close[0]}?" if close else "see `ebla fault list`"
        raise InvalidRequest(f"there is no fault point {name!r}", advice=advice) from None
