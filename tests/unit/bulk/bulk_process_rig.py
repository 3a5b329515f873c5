"""A bulk process with a fake control process."""

import asyncio
import uuid

from tests.unit.wire.rig import introduction

from ebla.model.identity import Address, HistoryId, TopologyVersion
from ebla.model.transaction import Revision
from ebla.node.context import NodeContext
from ebla.observe.event_reporter import EventReporter, discard_event
from ebla.options import NodeLimits, NodeOptions
from ebla.topology.keys import Row, encode
from ebla.topology.snapshot import TopologyState
from ebla.wire.feed_messages import ChildReport, FeedAnswer, FeedChange, FeedRequest
from ebla.wire.server import IncomingCall, Server
from ebla.wire.verbs import CHILD_BEAT, CHILD_REPORT, FEED, ChildBeatAnswer, ChildBeatRequest, EmptyAnswer

FOLDER = "/"
CONTROL, BULK = Address("/run/control.sock"), Address("/run/bulk.sock")

HISTORY = HistoryId(uuid.UUID(int=1))

OURS = introduction(1)


def node_context(pid: int, report: EventReporter = discard_event) -> NodeContext:
    assert OURS.cluster is not None
    return NodeContext(
        options=NodeOptions(data=FOLDER, limits=NodeLimits(child_heartbeat_ms=20)),
        host=OURS.host,
        cluster=OURS.cluster,
        cluster_name=OURS.cluster_name,
        report=report,
        pid=pid,
    )


class Control:
    """Sends one state after another, each once it was set, and keeps the reports it gets."""

    def __init__(self, tasks: asyncio.TaskGroup) -> None:
        self.server = Server(tasks, OURS, discard_event)
        self.server.serve(FEED, self._feed)
        self.server.serve(CHILD_REPORT, self._report)
        self.server.serve(CHILD_BEAT, self._beat)
        self.reports: list[ChildReport] = []
        self.beats: list[ChildBeatRequest] = []
        self._answers: asyncio.Queue[FeedAnswer] = asyncio.Queue()

    def tell(self, index: int, rows: dict[str, Row | None], *, reset: bool = False) -> None:
        at = Revision(HISTORY, index)
        changes = tuple(FeedChange(key, None if row is None else encode(row), at) for key, row in rows.items())
        self._answers.put_nowait(FeedAnswer(revision=at, reset=reset, changes=changes))

    async def reported(self, count: int) -> ChildReport:
        async with asyncio.timeout(60):
            while len(self.reports) < count:  # noqa: ASYNC110  # another task changes it, without an event
                await asyncio.sleep(0)
        assert len(self.reports) == count
        return self.reports[-1]

    async def _feed(self, _request: FeedRequest, _call: IncomingCall) -> FeedAnswer:
        return await self._answers.get()

    def _report(self, report: ChildReport, _call: IncomingCall) -> EmptyAnswer:
        self.reports.append(report)
        return EmptyAnswer()

    def _beat(self, beat: ChildBeatRequest, _call: IncomingCall) -> ChildBeatAnswer:
        self.beats.append(beat)
        return ChildBeatAnswer(serving=True)


def state(version: int) -> TopologyState:
    return TopologyState(version=TopologyVersion(version), fence=TopologyVersion(1))
