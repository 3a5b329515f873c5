"""What a process of a node knows of the topology, for everything in it that routes or serves.

A `View` is one version and everything derived from it. It never changes. The process first prepares for a new version
(tables, replicas), then installs it here in one step. A request takes `current` once and stays with it.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ebla.aio.eager import needs_task
from ebla.model.errors import Unavailable
from ebla.model.identity import HostId, TableId, TopologyVersion
from ebla.model.schema import TableSchema, decode_schema
from ebla.model.transaction import Revision
from ebla.topology.routing.replica_sets import ReplicaSets
from ebla.topology.snapshot import Snapshot
from ebla.topology.version_tracker import VersionTracker


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    snapshot: Snapshot
    sets: ReplicaSets
    revision: Revision
    schemas: Mapping[TableId, TableSchema]
    version: TopologyVersion
    fence: TopologyVersion
    names: Mapping[tuple[str, str], TableId]
    """Tables by keyspace and name."""


def view_of(snapshot: Snapshot, revision: Revision, before: View | None = None) -> View:
    """Reuses what the view before has computed and is still valid."""
    schemas: dict[TableId, TableSchema] = {}
    for table_id, table in snapshot.tables.items():
        known = None if before is None else before.snapshot.tables.get(table_id)
        if before is not None and known is table and table_id in before.schemas:
            schemas[table_id] = before.schemas[table_id]
        elif table.definition:
            schemas[table_id] = decode_schema(table.definition)
    sets = ReplicaSets(snapshot, None if before is None else before.sets)
    same_tables = before is not None and before.snapshot.tables is snapshot.tables
    names = before.names if before is not None and same_tables else _names_of(snapshot)
    return View(
        snapshot=snapshot,
        sets=sets,
        revision=revision,
        schemas=schemas,
        version=snapshot.version,
        fence=snapshot.fence,
        names=names,
    )


def _names_of(snapshot: Snapshot) -> Mapping[tuple[str, str], TableId]:
    return {(table.keyspace, table.name): table_id for table_id, table in snapshot.tables.items()}


class TopologyView:
    """The current view, the hosts that are down, and the versions that running requests still hold."""

    def __init__(self) -> None:
        self._current: View | None = None
        self._waiting: list[asyncio.Future[None]] = []
        self.versions = VersionTracker()
        self.down: frozenset[HostId] = frozenset()
        """Hosts that this node's control considers down, or that are excluded. Control lists its own host there exactly
        while this node is excluded."""
        self.on_release: Callable[[], None] = _nothing
        """Called when the last request of some version has ended."""

    @property
    def is_known(self) -> bool:
        return self._current is not None

    @property
    def current(self) -> View:
        if self._current is None:
            raise Unavailable("this process does not know the topology yet", advice="try again in a moment")
        return self._current

    def install(self, view: View) -> None:
        before = self._current
        assert before is None or view.version >= before.version or view.revision.history != before.revision.history
        self._current = view
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            if not one.done():
                one.set_result(None)

    def hold(self, version: TopologyVersion) -> None:
        self.versions.hold(version)

    def release(self, version: TopologyVersion) -> None:
        if self.versions.release(version):
            self.on_release()

    async def wait_version(self, version: TopologyVersion, timeout_s: float) -> bool:
        """Whether this version or a later one is installed in time."""
        return await self._wait(lambda view: view.version >= version, timeout_s)

    async def wait_fence(self, fence: TopologyVersion, timeout_s: float) -> bool:
        return await self._wait(lambda view: view.fence >= fence, timeout_s)

    async def wait_revision(self, revision: Revision, timeout_s: float) -> bool:
        """Whether the feed reaches this revision in time."""
        return await self._wait(
            lambda view: view.revision.history == revision.history and view.revision.index >= revision.index, timeout_s
        )

    async def _wait(self, reached: Callable[[View], bool], timeout_s: float) -> bool:
        if self._current is not None and reached(self._current):
            return True
        await needs_task()
        try:
            async with asyncio.timeout(timeout_s):
                while self._current is None or not reached(self._current):
                    changed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                    self._waiting.append(changed)
                    await changed
        except TimeoutError:
            return False
        return True


def _nothing() -> None:
    pass
