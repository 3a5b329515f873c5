"""The segmented log and the Raft log against plain lists, with crashes at any moment."""

from dataclasses import dataclass, field
from functools import partial

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.journal.on_disks import Machine

from ebla.control.raft.storage import RaftStorage
from ebla.journal.segmented_log import SegmentedLog
from ebla.model.errors import DiskFull
from ebla.raft.effects import LogWrite
from ebla.raft.messages import Entry, HardState, PeerId, SnapshotMeta
from ebla.sim.disk import ProcessDisk

FOLDER = "/data/log"
SEGMENT_BYTES = 3000


@dataclass(frozen=True, kw_only=True)
class Life:
    """What one process does, and when and how it ends. Times in milliseconds; None: it exits normally."""

    steps: list[tuple[str, int, int]]
    ends_after_ms: int | None
    with_power: bool
    fills_disk: bool


STEPS = st.tuples(st.sampled_from(["append", "append", "append", "drop"]), st.integers(1, 5), st.integers(0, 1500))
LIVES = st.lists(
    st.builds(
        Life,
        steps=st.lists(STEPS, max_size=12),
        ends_after_ms=st.one_of(st.none(), st.integers(0, 40)),
        with_power=st.booleans(),
        fills_disk=st.booleans(),
    ),
    min_size=1,
    max_size=6,
)


@dataclass(kw_only=True)
class Model:
    """`batches` holds every batch tried in order; the first `acknowledged` records of them must be there."""

    records: list[bytes] = field(default_factory=list)
    ends: list[int] = field(default_factory=lambda: [0])
    acknowledged: int = 0
    needed_from: int = 1
    serial: int = 0

    def draw(self, count: int, size: int) -> list[bytes]:
        self.serial += 1
        return [b"%d.%d/" % (self.serial, number) + bytes(size) for number in range(count)]


async def live(machine: Machine, model: Model, life: Life, disk: ProcessDisk) -> None:
    log = await SegmentedLog.open(disk, machine.rng, FOLDER, SEGMENT_BYTES)
    await check(log, model)
    for kind, count, size in life.steps:
        if kind == "drop":
            model.needed_from = max(model.needed_from, log.next_sequence - size % 10)
            await log.drop_before(model.needed_from)
            continue
        batch = model.draw(count, size)
        model.records += batch
        model.ends.append(len(model.records))
        try:
            last = await log.append(batch)
        except DiskFull:
            del model.records[-count:]
            model.ends.pop()
            machine.disk.heal()
            continue
        assert last == len(model.records)
        model.acknowledged = last
    await log.close()


async def check(log: SegmentedLog, model: Model) -> None:
    found = [record async for batch in log.read(log.first_sequence) for record in batch.records]
    end = log.next_sequence - 1
    assert end >= model.acknowledged, "an acknowledged record is missing"
    assert end in model.ends, "a batch is there in part"
    assert log.first_sequence <= model.needed_from, "a record still needed was dropped"
    assert found == model.records[log.first_sequence - 1 : end]
    model.records = model.records[:end]
    model.ends = [known for known in model.ends if known <= end]
    model.acknowledged = end


@settings(max_examples=250, deadline=None)
@given(seed=st.integers(0, 10**6), lives=LIVES)
def test_the_log_is_a_list_that_crashes_do_not_shorten(seed: int, lives: list[Life]) -> None:
    machine = Machine(seed)
    model = Model()
    for life in lives:
        if life.fills_disk:
            machine.disk.fill(left_bytes=machine.rng.randrange(4000, 12_000))
        main = partial(live, machine, model, life)
        try:
            machine.run_until(1e6 if life.ends_after_ms is None else life.ends_after_ms / 1000, main)
        except DiskFull:
            pass  # no space to open or close the log
        machine.disk.heal()
        if life.with_power:
            machine.lose_power()
    machine.run(partial(live, machine, model, Life(steps=[], ends_after_ms=None, with_power=False, fills_disk=False)))


@dataclass
class RaftModel:
    """What the core holds: the state after the last acknowledged write, and after the current one."""

    hard_state: HardState = field(default_factory=HardState)
    snapshot: SnapshotMeta = field(default_factory=SnapshotMeta)
    entries: tuple[Entry, ...] = ()

    @property
    def last_index(self) -> int:
        return self.entries[-1].index if self.entries else self.snapshot.index

    def copy(self) -> "RaftModel":
        return RaftModel(self.hard_state, self.snapshot, self.entries)

    def grow(self, count: int) -> LogWrite:
        first = self.last_index + 1
        new = tuple(Entry(index=first + step, term=self.hard_state.term, data=b"e" * 60) for step in range(count))
        self.entries += new
        return LogWrite(hard_state=None, entries=new, snapshot=None, must_sync=True, answers=())

    def replace(self, back: int, count: int) -> LogWrite:
        """A new leader's entries instead of the last `back` uncommitted ones."""
        first = max(self.last_index + 1 - back, self.hard_state.commit + 1, self.snapshot.index + 1)
        self.hard_state = HardState(self.hard_state.term + 1, PeerId(back % 3), self.hard_state.commit)
        new = tuple(Entry(index=first + step, term=self.hard_state.term, data=b"r" * 60) for step in range(count))
        self.entries = (*(entry for entry in self.entries if entry.index < first), *new)
        return LogWrite(hard_state=self.hard_state, entries=new, snapshot=None, must_sync=True, answers=())

    def commit(self, steps: int) -> LogWrite:
        index = min(self.hard_state.commit + steps, self.last_index)
        self.hard_state = HardState(self.hard_state.term, self.hard_state.vote, index)
        return LogWrite(hard_state=self.hard_state, entries=(), snapshot=None, must_sync=False, answers=())

    def install(self, ahead: int) -> LogWrite:
        term = self.hard_state.term + 1
        self.snapshot = SnapshotMeta(self.last_index + ahead, term)
        self.entries = ()
        self.hard_state = HardState(term, PeerId(0), self.snapshot.index)
        return LogWrite(hard_state=self.hard_state, entries=(), snapshot=self.snapshot, must_sync=True, answers=())

    def take_snapshot(self, back: int) -> SnapshotMeta | None:
        index = self.hard_state.commit - back
        if index <= self.snapshot.index:
            return None
        term = next(entry.term for entry in self.entries if entry.index == index)
        self.snapshot = SnapshotMeta(index, term)
        self.entries = tuple(entry for entry in self.entries if entry.index > index)
        return self.snapshot


RAFT_STEPS = st.tuples(
    st.sampled_from(["grow", "grow", "replace", "commit", "commit", "install", "snapshot"]), st.integers(1, 8)
)
RAFT_LIVES = st.lists(
    st.tuples(st.lists(RAFT_STEPS, max_size=25), st.one_of(st.none(), st.integers(0, 60)), st.booleans()),
    min_size=1,
    max_size=5,
)


class RaftRun:
    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.durable = RaftModel()
        self.wanted = RaftModel()

    async def live(self, steps: list[tuple[str, int]], disk: ProcessDisk) -> None:
        log, found = await RaftStorage.open(disk, self.machine.rng, "/data/raft", SEGMENT_BYTES)
        model = RaftModel(found.hard_state, found.snapshot, found.entries)
        self.check(model)
        self.durable, self.wanted = model.copy(), model
        for kind, amount in steps:
            await self.step(log, kind, amount)
            self.durable = self.wanted.copy()
        await log.close()

    async def step(self, log: RaftStorage, kind: str, amount: int) -> None:
        model = self.wanted
        if kind == "snapshot":
            own = model.take_snapshot(amount % 4)
            if own is not None:
                await log.store_snapshot(own, [b"own"] * amount)
                await log.adopt_snapshot(own)
        elif kind == "install":
            write = model.install(amount)
            assert write.snapshot is not None
            await log.store_snapshot(write.snapshot, [b"leader's"] * amount)
            await log.persist([write])
        elif kind == "grow":
            await log.persist([model.grow(amount), model.grow(1)])
        elif kind == "replace":
            await log.persist([model.replace(amount, 1 + amount % 3)])
        else:
            await log.persist([model.commit(amount)])

    def check(self, found: RaftModel) -> None:
        expected = (self.durable, self.wanted)
        assert (found.snapshot, found.entries) in [(model.snapshot, model.entries) for model in expected]
        promises = [(model.hard_state.term, model.hard_state.vote) for model in expected]
        assert (found.hard_state.term, found.hard_state.vote) in promises
        assert found.hard_state.commit <= self.wanted.hard_state.commit
        assert found.hard_state.commit >= found.snapshot.index


@settings(max_examples=250, deadline=None)
@given(seed=st.integers(0, 10**6), lives=RAFT_LIVES)
def test_the_raft_log_gives_back_what_was_persisted(
    seed: int, lives: list[tuple[list[tuple[str, int]], int | None, bool]]
) -> None:
    run = RaftRun(Machine(seed))
    for steps, ends_after_ms, with_power in lives:
        run.machine.run_until(1e6 if ends_after_ms is None else ends_after_ms / 1000, partial(run.live, steps))
        if with_power:
            run.machine.lose_power()
    run.machine.run(partial(run.live, []))
