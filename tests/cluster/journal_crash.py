"""Kills a process at every file-system call of the log, one call per try. Run by `test_journal_crash.py`.

`python journal_crash.py FOLDER WORKLOAD` prints one line of JSON per kill: where, and what was wrong afterwards. Each
try is a fork of this process, which has imported everything and has no threads: a fork takes milliseconds, a new
interpreter a second. A sync is executed only where the process dies at it: what a killed process wrote stays in the
page cache either way, and thousands of syncs would take minutes.
"""

import asyncio
import gc
import json
import os
import shutil
import signal
import sys
import traceback
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from ebla.control.raft.storage import RaftStorage
from ebla.journal.segmented_log import SegmentedLog
from ebla.raft.effects import LogWrite
from ebla.raft.messages import Entry, HardState, PeerId, SnapshotMeta
from ebla.raft.state import RecoveredState
from ebla.runtime.file_disk import DiskFile, FileDisk
from ebla.runtime.system_rng import SystemRng

T = TypeVar("T")
SEGMENT_BYTES = 2048
TRY_LIMIT_S = 30
RESTARTS_KILLED = 2


class Executioner:
    """Counts the calls and kills the process before, after or half-way through the chosen one."""

    def __init__(self, number: int, moment: str) -> None:
        self.calls: list[str] = []
        self._number = number
        self._moment = moment

    def before(self, call: str) -> bool:
        """Whether to stop half-way through this call."""
        self.calls.append(call)
        if len(self.calls) != self._number:
            return False
        if self._moment == "before":
            die()
        return self._moment == "half"

    @property
    def is_at_hand(self) -> bool:
        """Whether the current call is the chosen one."""
        return len(self.calls) == self._number

    def after(self) -> None:
        if len(self.calls) == self._number and self._moment == "after":
            die()


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class DoomedFile:
    """`ports.disk.File`. Reading changes nothing and is not counted."""

    def __init__(self, file: DiskFile, fate: Executioner) -> None:
        self._file = file
        self._fate = fate
        self.path = file.path
        self.size = file.size
        self.read = file.read

    def append(self, data: bytes) -> None:
        self.write(self._file.size(), data)

    def write(self, offset: int, data: bytes) -> None:
        if self._fate.before(f"write {self.path}"):
            self._file.write(offset, data[: len(data) // 2])
            die()
        self._file.write(offset, data)
        self._fate.after()

    def truncate(self, size: int) -> None:
        self._fate.before(f"truncate {self.path}")
        self._file.truncate(size)
        self._fate.after()

    def preallocate(self, size: int) -> None:
        self._fate.before(f"preallocate {self.path}")
        self._file.preallocate(size)
        self._fate.after()

    async def sync(self) -> None:
        self._fate.before(f"sync {self.path}")
        if self._fate.is_at_hand:
            await self._file.sync()
        self._fate.after()

    def can_sync_now(self, more_bytes: int) -> bool:  # the sync must be a call that can be killed
        return True

    def sync_now(self) -> None:
        self._fate.before(f"sync {self.path}")
        if self._fate.is_at_hand:
            self._file.sync_now()
        self._fate.after()

    def close(self) -> None:
        self._fate.before(f"close {self.path}")
        self._file.close()
        self._fate.after()


class DoomedDisk:
    """`ports.disk.Disk`."""

    def __init__(self, disk: FileDisk, fate: Executioner) -> None:
        self._disk = disk
        self._fate = fate
        self.list_folder = disk.list_folder
        self.exists = disk.exists
        self.free_bytes = disk.free_bytes
        self.run = disk.run

    def open(self, path: str) -> DoomedFile:
        return DoomedFile(self._disk.open(path), self._fate)

    def create(self, path: str) -> DoomedFile:
        return DoomedFile(self._counted("create", path, partial(self._disk.create, path)), self._fate)

    def rename(self, old: str, new: str) -> None:
        self._counted("rename", new, partial(self._disk.rename, old, new))

    def link(self, existing: str, new: str) -> None:
        self._counted("link", new, partial(self._disk.link, existing, new))

    def unlink(self, path: str) -> None:
        self._counted("unlink", path, partial(self._disk.unlink, path))

    def make_folder(self, path: str) -> None:
        self._counted("make_folder", path, partial(self._disk.make_folder, path))

    def remove_folder(self, path: str) -> None:
        self._counted("remove_folder", path, partial(self._disk.remove_folder, path))

    async def sync_folder(self, path: str) -> None:
        self._fate.before(f"sync_folder {path}")
        if self._fate.is_at_hand:
            await self._disk.sync_folder(path)
        self._fate.after()

    def _counted(self, call: str, path: str, act: Callable[[], T]) -> T:
        self._fate.before(f"{call} {path}")
        result = act()
        self._fate.after()
        return result


@dataclass(frozen=True)
class Workload:
    run: Callable[[DoomedDisk, str, Callable[[], None]], Coroutine[Any, Any, None]]
    """Calls its last argument after every acknowledged step."""
    check: Callable[[DoomedDisk, str, int], Coroutine[Any, Any, None]]
    """Takes the number of acknowledged steps."""


BATCHES = [[b"%d.%d" % (number, part) * 60 for part in range(1 + number % 3)] for number in range(10)]


async def write_journal(disk: DoomedDisk, folder: str, acknowledge: Callable[[], None]) -> None:
    log = await SegmentedLog.open(disk, SystemRng(), f"{folder}/log", SEGMENT_BYTES)
    for number, batch in enumerate(BATCHES):
        if number % 2 or log.append_now(batch) is None:
            await log.append(batch)
        acknowledge()
        if number == 7:
            await log.drop_before(10)
    await log.close()


async def check_journal(disk: DoomedDisk, folder: str, acknowledged: int) -> None:
    log = await SegmentedLog.open(disk, SystemRng(), f"{folder}/log", SEGMENT_BYTES)
    found = [record async for batch in log.read(log.first_sequence) for record in batch.records]
    counts = (acknowledged, min(acknowledged + 1, len(BATCHES)))
    expected = [[record for batch in BATCHES[:count] for record in batch][log.first_sequence - 1 :] for count in counts]
    assert found in expected, f"{acknowledged} batches were acknowledged, {len(found)} records are there"
    assert log.first_sequence == 1 or acknowledged >= 8, "dropped too early"
    await log.append([b"goes on"])
    await log.close()


def state(term: int, commit: int) -> HardState:
    return HardState(term, PeerId(1), commit)


def entries(first: int, last: int, term: int) -> tuple[Entry, ...]:
    return tuple(Entry(index=index, term=term, data=b"e" * 150) for index in range(first, last + 1))


def write(hard_state: HardState | None, new: tuple[Entry, ...], snapshot: SnapshotMeta | None = None) -> LogWrite:
    return LogWrite(hard_state=hard_state, entries=new, snapshot=snapshot, must_sync=True, answers=())


OWN, LEADERS = SnapshotMeta(14, 1), SnapshotMeta(30, 2)
RAFT_STEPS: list[tuple[LogWrite | None, RecoveredState]] = [
    (None, RecoveredState(HardState(), SnapshotMeta(), ())),
    (write(state(1, 0), entries(1, 8, 1)), RecoveredState(state(1, 0), SnapshotMeta(), entries(1, 8, 1))),
    (write(state(1, 8), entries(9, 18, 1)), RecoveredState(state(1, 8), SnapshotMeta(), entries(1, 18, 1))),
    (None, RecoveredState(state(1, 14), OWN, entries(15, 18, 1))),
    (
        write(state(2, 15), entries(16, 17, 2)),
        RecoveredState(state(2, 15), OWN, (*entries(15, 15, 1), *entries(16, 17, 2))),
    ),
    (write(state(2, 30), entries(31, 31, 2), LEADERS), RecoveredState(state(2, 30), LEADERS, entries(31, 31, 2))),
    (
        write(state(3, 31), entries(32, 36, 3)),
        RecoveredState(state(3, 31), LEADERS, entries(31, 31, 2) + entries(32, 36, 3)),
    ),
]


async def write_raft(disk: DoomedDisk, folder: str, acknowledge: Callable[[], None]) -> None:
    log, _ = await RaftStorage.open(disk, SystemRng(), f"{folder}/raft", SEGMENT_BYTES)
    for step, (wanted, _) in enumerate(RAFT_STEPS[1:], 1):
        if wanted is None:
            await log.store_snapshot(OWN, [b"own state"] * 3)
            await log.adopt_snapshot(OWN)
        else:
            if wanted.snapshot is not None:
                await receive(log, wanted.snapshot)
            if step % 2 or not log.persist_now([wanted]):
                await log.persist([wanted])
        acknowledge()
        assert step < len(RAFT_STEPS)
    await log.close()


async def receive(log: RaftStorage, meta: SnapshotMeta) -> None:
    """Receives a snapshot in steps, after an abandoned one of a former leader, while a third is unfinished."""
    former = await log.begin_snapshot(SnapshotMeta(29, 1), "from-1")
    await former.append([b"never whole"])
    left = await log.begin_snapshot(meta, "from-3")
    await left.append([b"left half-way"])
    former.discard()
    arriving = await log.begin_snapshot(meta, "from-2")
    await arriving.append([b"the lea"])
    await arriving.sync()
    await arriving.append([b"der's", b" state"])
    await arriving.place()


async def check_raft(disk: DoomedDisk, folder: str, acknowledged: int) -> None:
    log, found = await RaftStorage.open(disk, SystemRng(), f"{folder}/raft", SEGMENT_BYTES)
    expected = [step[1] for step in RAFT_STEPS[acknowledged : acknowledged + 2]]
    assert found in expected, f"after {acknowledged} steps: {found.hard_state}, {found.snapshot}, {len(found.entries)}"
    if found.snapshot.index:
        content = b"".join([piece async for piece in log.read_snapshot(found.snapshot)])
        assert content == (b"own state" * 3 if found.snapshot == OWN else b"the leader's state")
    names = [name for name in disk.list_folder(f"{folder}/raft") if name.startswith("snapshot-")]
    assert len(names) == (found.snapshot.index > 0), f"left over beside {found.snapshot}: {names}"
    await log.persist([write(HardState(9, PeerId(2), found.hard_state.commit), ())])
    await log.close()


WORKLOADS = {"journal": Workload(write_journal, check_journal), "raft": Workload(write_raft, check_raft)}


def fork_and_wait(act: Callable[[], None]) -> int:
    """The child's wait status. An alarm ends a child that hangs."""
    child = os.fork()
    if child == 0:
        try:
            signal.alarm(TRY_LIMIT_S)
            act()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return os.waitpid(child, 0)[1]


def run_main(main: Callable[[DoomedDisk], Coroutine[Any, Any, None]], fate: Executioner) -> None:
    disk = FileDisk()
    asyncio.run(main(DoomedDisk(disk, fate)))
    disk.close()


def do_work(workload: Workload, folder: str, fate: Executioner) -> None:
    acknowledgements = os.open(f"{folder}/acknowledged", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def acknowledge() -> None:
        os.write(acknowledgements, b".")

    run_main(lambda disk: workload.run(disk, folder, acknowledge), fate)
    with open(f"{folder}/calls", "w") as file:
        json.dump(fate.calls, file)


def do_check(workload: Workload, folder: str, fate: Executioner) -> None:
    acknowledged = os.path.getsize(f"{folder}/acknowledged")
    run_main(lambda disk: workload.check(disk, folder, acknowledged), fate)
    with open(f"{folder}/calls", "w") as file:
        json.dump(fate.calls, file)


def list_calls(folder: str) -> list[str]:
    with open(f"{folder}/calls") as file:
        calls: list[str] = json.load(file)
    return calls


def moments(calls: list[str]) -> list[tuple[int, str]]:
    return [
        (number, moment)
        for number, call in enumerate(calls, 1)
        for moment in (("before", "half", "after") if call.startswith("write ") else ("before", "after"))
    ]


class Trial:
    """Every kill of a workload, and for a few of them every kill during the restart."""

    def __init__(self, workload: Workload, folder: str) -> None:
        self._workload = workload
        self._folder = folder

    def run(self) -> None:
        self._fresh()
        status = fork_and_wait(partial(do_work, self._workload, self._folder, Executioner(0, "")))
        assert status == 0, "the workload fails even without a kill"
        calls = list_calls(self._folder)
        points = moments(calls)
        for place, (number, moment) in enumerate(points):
            status = self._kill_work(number, moment)
            outcome = self._restart() if os.WTERMSIG(status) == signal.SIGKILL else f"not killed: status {status}"
            self._tell(f"{moment} {number}: {calls[number - 1]}", outcome)
            if place % (len(points) // RESTARTS_KILLED) == len(points) // 3:
                self._kill_restarts(number, moment, calls[number - 1])

    def _kill_work(self, number: int, moment: str) -> int:
        self._fresh()
        return fork_and_wait(partial(do_work, self._workload, self._folder, Executioner(number, moment)))

    def _kill_restarts(self, number: int, moment: str, call: str) -> None:
        restart_calls = list_calls(self._folder)
        for restart_number, restart_moment in moments(restart_calls):
            self._kill_work(number, moment)
            fate = Executioner(restart_number, restart_moment)
            status = fork_and_wait(partial(do_open, self._workload, self._folder, fate))
            outcome = self._restart() if os.WTERMSIG(status) == signal.SIGKILL else ""
            self._tell(f"{moment} {number}: {call}, then {restart_moment} {restart_calls[restart_number - 1]}", outcome)

    def _restart(self) -> str:
        status = fork_and_wait(partial(do_check, self._workload, self._folder, Executioner(0, "")))
        return "" if status == 0 else f"the check ended with status {status}"

    def _fresh(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
        os.makedirs(self._folder)

    def _tell(self, kill: str, wrong: str) -> None:
        print(json.dumps({"kill": kill.replace(self._folder, ""), "wrong": wrong}), flush=True)


async def only_open(workload: Workload, folder: str, disk: DoomedDisk) -> None:
    if workload.check is check_journal:
        await SegmentedLog.open(disk, SystemRng(), f"{folder}/log", SEGMENT_BYTES)
    else:
        await RaftStorage.open(disk, SystemRng(), f"{folder}/raft", SEGMENT_BYTES)


def do_open(workload: Workload, folder: str, fate: Executioner) -> None:
    run_main(partial(only_open, workload, folder), fate)


if __name__ == "__main__":
    gc.freeze()  # so that a collection in a child does not copy every page of this process
    Trial(WORKLOADS[sys.argv[2]], f"{sys.argv[1]}/{sys.argv[2]}").run()
