"""A process that is ready and forks others from itself, which take jobs: the child's half of `ForkedJobs`.

What jobs need is imported once, here; a fork of that takes milliseconds where a new interpreter takes as long as it
takes to write a hundred thousand rows. This process itself never works: whatever starts threads or opens files does so
in a fork, so that there is always something clean to fork from.

Forks stay for further jobs, since what they have in memory by then is worth something too, and end when they have none
for a while. Nobody outlives anybody: this process ends when its input does, forks end with it.
"""

import gc
import os
import selectors
import signal
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NoReturn

from ebla.bulk.workers.frames import WorkerFrame, WorkerFrameKind, WorkerFrameReader, encode_frame
from ebla.bulk.workers.no_pandas import disable_pandas
from ebla.runtime.death_signal import die_with_parent, set_death_signal

FORK_IDLE_S = 20.0
"""So long a fork waits for another job before it ends."""

_STANDARD_INPUT, _STANDARD_OUTPUT, _STANDARD_ERROR = 0, 1, 2
_READ_BYTES = 1 << 16

Work = Callable[[bytes], bytes]


@dataclass(slots=True, kw_only=True)
class _Fork:
    pid: int
    jobs: int
    """Descriptors: where its jobs are written,"""
    outcomes: int
    """and where its answers come from."""
    number: int | None = None
    """Of the job it is at."""
    idle_since: float = 0.0
    heard: WorkerFrameReader = field(default_factory=WorkerFrameReader)


def serve_forks(parent: int, work: Work) -> NoReturn:
    """Until the parent lets go. `work` is called in forks, with a job, for its outcome."""
    set_death_signal(parent)
    disable_pandas()
    # What is there now never goes away: no fork needs to look through it, and copy the pages it would mark.
    gc.collect()
    gc.freeze()
    _Forks(work).serve()


class _Forks:
    def __init__(self, work: Work) -> None:
        self._work = work
        self._selector = selectors.DefaultSelector()
        self._selector.register(_STANDARD_INPUT, selectors.EVENT_READ)
        self._heard = WorkerFrameReader()
        self._forks: dict[int, _Fork] = {}
        """By the descriptor of their answers."""
        self._this_ends, self._this_lives = os.pipe()

    def serve(self) -> NoReturn:
        while True:
            for key, _ in self._selector.select(self._patience_s()):
                if key.fd == _STANDARD_INPUT:
                    self._hear_parent()
                else:
                    self._hear_fork(self._forks[key.fd])
            self._end_idle()

    def _patience_s(self) -> float | None:
        idle = [one.idle_since for one in self._forks.values() if one.number is None]
        return max(0.0, min(idle) + FORK_IDLE_S - time.monotonic()) if idle else None

    def _hear_parent(self) -> None:
        data = os.read(_STANDARD_INPUT, _READ_BYTES)
        if not data:
            self._end()
        for one in self._heard.take(data):
            match one.kind:
                case WorkerFrameKind.JOB:
                    self._give(one)
                case WorkerFrameKind.KILL:
                    for fork in self._forks.values():
                        if fork.number == one.number:
                            os.kill(fork.pid, signal.SIGKILL)
                case WorkerFrameKind.OUTCOME | WorkerFrameKind.GONE:
                    raise AssertionError("a parent has no outcomes")

    def _end(self) -> NoReturn:
        """Forks are reaped, so that what they cost is known."""
        for fork in list(self._forks.values()):
            os.kill(fork.pid, signal.SIGKILL)
            os.waitpid(fork.pid, 0)
        os._exit(0)

    def _give(self, job: WorkerFrame) -> None:
        fork = next((one for one in self._forks.values() if one.number is None), None) or self._forked()
        fork.number = job.number
        try:
            _write_all(fork.jobs, encode_frame(job))
        except BrokenPipeError:
            pass  # it has died, as the end of its answers tells

    def _hear_fork(self, fork: _Fork) -> None:
        data = os.read(fork.outcomes, _READ_BYTES)
        if not data:
            self._bury(fork)
        for one in fork.heard.take(data):
            _write_all(_STANDARD_OUTPUT, encode_frame(one))
            fork.number, fork.idle_since = None, time.monotonic()

    def _bury(self, fork: _Fork) -> None:
        self._selector.unregister(fork.outcomes)
        del self._forks[fork.outcomes]
        os.close(fork.jobs)
        os.close(fork.outcomes)
        # Its answers end with it: there is nothing to wait for.
        os.waitpid(fork.pid, 0)
        if fork.number is not None:
            _write_all(_STANDARD_OUTPUT, encode_frame(WorkerFrame(WorkerFrameKind.GONE, fork.number)))

    def _end_idle(self) -> None:
        now = time.monotonic()
        for fork in list(self._forks.values()):
            if fork.number is None and now - fork.idle_since >= FORK_IDLE_S:
                os.kill(fork.pid, signal.SIGKILL)
                self._bury(fork)

    def _forked(self) -> _Fork:
        jobs_out, jobs_in = os.pipe()
        outcomes_out, outcomes_in = os.pipe()
        here = os.getpid()
        pid = os.fork()
        if not pid:
            self._become_fork(here, jobs_out, outcomes_in, (jobs_in, outcomes_out))
        os.close(jobs_out)
        os.close(outcomes_in)
        fork = self._forks[outcomes_out] = _Fork(pid=pid, jobs=jobs_in, outcomes=outcomes_out)
        self._selector.register(outcomes_out, selectors.EVENT_READ)
        return fork

    def _become_fork(self, parent: int, jobs: int, outcomes: int, others: tuple[int, int]) -> NoReturn:
        try:
            # An end that a sister holds open never comes to its end.
            self._selector.close()
            for fork in self._forks.values():
                os.close(fork.jobs)
                os.close(fork.outcomes)
            for one in (*others, self._this_lives):
                os.close(one)
            _let_go_of_standard_streams()
            die_with_parent(parent, self._this_ends)
            _take_jobs(self._work, jobs, outcomes)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)


def _let_go_of_standard_streams() -> None:
    """The parent's parent waits for their ends too. What is printed goes where errors go."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, _STANDARD_INPUT)
    os.close(nothing)
    os.dup2(_STANDARD_ERROR, _STANDARD_OUTPUT)


def _take_jobs(work: Work, jobs: int, outcomes: int) -> NoReturn:
    heard = WorkerFrameReader()
    while data := os.read(jobs, _READ_BYTES):
        for job in heard.take(data):
            _write_all(outcomes, encode_frame(WorkerFrame(WorkerFrameKind.OUTCOME, job.number, work(job.body))))
    os._exit(0)


def _write_all(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]
