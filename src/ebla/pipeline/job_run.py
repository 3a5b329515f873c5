"""One run of a job: what it is made of, and how it says how far it is."""

import asyncio
from collections.abc import Callable, Collection, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import msgspec

from ebla.feed.topology_view import TopologyView, View
from ebla.model.errors import EblaError
from ebla.model.identity import HostId, SessionId, TopologyVersion, TransferId
from ebla.model.records.jobs import JobProgress, JobRecord
from ebla.model.transfers import TransferResult, TransferTarget, TransferTask
from ebla.ports.clock import Clock
from ebla.ports.rng import Rng
from ebla.ports.transfer_engine import TransferEngine
from ebla.transfers.transfer_client import TransferClient, TransferScope

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLimits:
    topology_ms: int = 30_000
    """How long the process may take to hear of the version that a session was opened on."""
    progress_ms: int = 1_000
    pieces_at_once_max: int = 64
    """Ranges whose checkpoints and stagings are there at the same time."""
    compare_tries: int = 4
    """How often a bucket must differ, each time by fresh checkpoints, before its replicas are said to."""
    compare_pause_ms: int = 500
    """Before the second time; twice as long before each further one."""
    bucket_bytes: int = 256 << 10
    buckets_min: int = 16
    buckets_max: int = 4_096
    suspect_ranges_max: int = 64
    """Of one piece, that are looked at again; where more of it differ, it is looked at from the first to the last."""
    heal_ranges_max: int = 8
    """Of one piece; where more of it differ, it is healed from the first to the last of them."""
    differences_kept_max: int = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDeps:
    steps: TransferClient
    transfers: TransferEngine
    view: TopologyView
    clock: Clock
    rng: Rng
    limits: RunLimits = field(default_factory=RunLimits)


@dataclass(frozen=True, slots=True)
class NewSession:
    """A session's id, not opened yet, and a version of the topology that was known when it was drawn: a question for
    it that is late finds that it was closed by then."""

    session: SessionId
    known_version: TopologyVersion


class JobHandle(Protocol):
    """Whoever attends to a run."""

    def tell(self, progress: JobProgress) -> None:
        """Quick; never fails."""
        ...

    async def confirm(self) -> None:
        """Raises `Stale` where the run is not to go on under its session: it was taken over."""
        ...


class ProgressMeter:
    """`tell` is called with each change; it is quick and never fails."""

    def __init__(self, tell: Callable[[JobProgress], None]) -> None:
        self._tell = tell
        self._bytes_before = 0
        self.progress = JobProgress()

    def step(self, words: str) -> None:
        self._set(step=words)

    def expect(self, size_bytes: int) -> None:
        """So many bytes more are going to move, behind those that have."""
        self._bytes_before = self.progress.bytes_done
        self._set(bytes_total=self.progress.bytes_total + size_bytes)

    def moved(self, size_bytes: int) -> None:
        """Of what is expected."""
        self._set(bytes_done=max(self.progress.bytes_done, self._bytes_before + size_bytes))

    def tasks(self, done: int, total: int) -> None:
        self._set(tasks_done=done, tasks_total=total)

    def _set(self, **changes: Any) -> None:
        changed = msgspec.structs.replace(self.progress, **changes)
        if changed != self.progress:
            self.progress = changed
            self._tell(changed)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRun:
    job: JobRecord
    drawn: NewSession
    meter: ProgressMeter
    parts: RunDeps

    @property
    def session(self) -> SessionId:
        return self.drawn.session

    @property
    def view(self) -> View:
        return self.parts.view.current

    @property
    def scope(self) -> TransferScope:
        """By the newest version: a job may outlive the one that it began on."""
        return TransferScope(
            job=self.job.id, session=self.session, table=self.job.spec.table, version=self.view.version
        )

    async def run_on_engine(
        self, work: Sequence[TransferTask], targets: Collection[TransferTarget] = ()
    ) -> Sequence[TransferResult]:
        """What the engine says, with an eye on how far it is."""
        hosts: dict[HostId, list[TransferId]] = {}
        for target in targets:
            hosts.setdefault(target.host, []).append(target.transfer)
        return await run_beside(self.parts.transfers.run(self.job.id, work), self._watch(hosts))

    async def _watch(self, hosts: dict[HostId, list[TransferId]]) -> None:
        while True:
            await asyncio.sleep(self.parts.limits.progress_ms / 1000)
            counts = self.parts.transfers.tasks(self.job.id)
            self.meter.tasks(counts.done, counts.total)
            received = 0
            for host, transfers in hosts.items():
                told = await self.parts.steps.stagings(host, self.session)
                received += sum(one.received_bytes for one in told if one.transfer in transfers)
            self.meter.moved(received)


async def run_beside(work: Coroutine[Any, Any, T], companion: Coroutine[Any, Any, None]) -> T:
    """The work, with something beside it that ends when it does. An error of the work is raised as it is."""
    failure: EblaError
    async with asyncio.TaskGroup() as tasks:
        beside = tasks.create_task(companion)
        try:
            return await work
        except EblaError as error:
            failure = error  # not from within the group, which would wrap it
        finally:
            beside.cancel()
    raise failure
