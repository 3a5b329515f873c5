"""Runs of rows into the staging of every replica that they are for.

On the machine of the node a run is a file that the task writes itself, once, and that the other nodes of that machine
get by a link. What a task does there is not trusted: the seal looks at every file before it counts. Elsewhere it goes
over Flight, to each node in a thread of its own.

A replica that cannot be reached is given up for the rest of the task, as long as another gets the rows: the commit is
told, and either copies them there or leaves that replica to repair.
"""

import errno
import os
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from ebla.model.errors import (
    ConnectionLost,
    DeadlineExceeded,
    DiskFull,
    EblaError,
    Overloaded,
    Unavailable,
    Unreachable,
)
from ebla.model.identity import AttemptId, HostId, TransferId
from ebla.model.transfers import ROWS_NAME, StagedFile, TransferTarget
from ebla.source.write.commit_deps import RecordSink
from ebla.source.write.sorted_runs import RoutedRows
from ebla.source.write.staged_replicas import StagedByTask
from ebla.storage.codec.checksums import crc32
from ebla.storage.codec.row_file import Record, record_parts_of, records_of
from ebla.transfers.link_path import is_reachable_folder
from ebla.wire.table_calls import StagedRun

RECORD_BYTES = 2 << 20
THREADS_MAX = 8

_GONE = (Unreachable, ConnectionLost, DeadlineExceeded, Unavailable, Overloaded)
"""What becomes of a node that is down, or so busy that it turned the task away for as long as it asked."""
_NOT_LINKABLE = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP)
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)


@dataclass(slots=True, kw_only=True)
class _Run:
    """Rows for targets that all get the same."""

    rows: RoutedRows
    targets: list[TransferTarget]
    """That are still to be reached."""
    staged: list[StagedRun] = field(default_factory=list)
    errors: list[EblaError] = field(default_factory=list)
    _records: list[bytes] = field(default_factory=list)

    def record_parts(self) -> Iterator[Record]:
        return record_parts_of(self.rows.batches, RECORD_BYTES)

    def kept_records(self) -> list[bytes]:
        """For more than one sender."""
        if not self._records:
            self._records = list(records_of(self.rows.batches, RECORD_BYTES))
        return self._records

    def note(self, target: TransferTarget, attempt: AttemptId, file: StagedFile) -> None:
        self.staged.append(
            StagedRun(host=target.host, transfer=target.transfer, attempt=attempt, file=file, rows=self.rows.rows)
        )


class Stager:
    """For one task, or for a commit. `connect` gives a way to nodes; each node has one of its own."""

    def __init__(
        self, targets: Sequence[TransferTarget], connect: Callable[[], RecordSink], *, short_cut: bool = True
    ) -> None:
        self._targets = tuple(targets)
        self._connect = connect
        self._short_cut = short_cut
        self._sinks: dict[HostId, RecordSink] = {}
        self._local: dict[TransferId, bool] = {}
        self._runs: list[StagedRun] = []
        self._lost: dict[TransferId, EblaError] = {}

    def stage(self, parts: Iterable[RoutedRows]) -> None:
        """Returns when all of it is where it belongs. Raises what no other replica makes up for. What is written here
        is not held any longer; the rest goes to all nodes at once."""
        runs = []
        for part in parts:
            targets = [self._targets[place] for place in part.targets]
            run = _Run(rows=part, targets=[target for target in targets if target.transfer not in self._lost])
            self._write_here(run)
            if run.staged and not run.targets:
                self._runs += run.staged
            else:
                runs.append(run)
        self._send(runs)
        for run in runs:
            if not run.staged:
                raise _no_replica(run, self._lost)
            self._runs += run.staged

    def staged(self) -> StagedByTask:
        kept = tuple(run for run in self._runs if run.transfer not in self._lost)
        return StagedByTask(kept, tuple(self._lost))

    def close(self) -> None:
        for sink in self._sinks.values():
            sink.close()
        self._sinks.clear()

    # ---- on this machine

    def _write_here(self, run: _Run) -> None:
        local = [target for target in run.targets if self._is_here(target)]
        if not local:
            return
        origin: str | None = None
        file = StagedFile(ROWS_NAME, 0)
        for target in local:
            attempt = new_attempt()
            try:
                if origin is None:
                    file, origin = _written(target, attempt, run.record_parts())
                else:
                    _linked(origin, target, attempt)
            except OSError as error:
                if error.errno in _NO_SPACE:
                    raise DiskFull(
                        f"the disk of node {target.host} has no room for {run.rows.size_bytes} bytes of rows",
                        advice="make room there, and run the job again",
                    ) from error
                # Over Flight the node itself says what is wrong.
                self._local[target.transfer] = False
            else:
                run.note(target, attempt, file)
                run.targets.remove(target)

    def _is_here(self, target: TransferTarget) -> bool:
        found = self._local.get(target.transfer)
        if found is None:
            found = (
                self._short_cut
                and is_reachable_folder(target.machine, target.folder)
                and os.access(target.folder, os.W_OK)
            )
            self._local[target.transfer] = found
        return found

    # ---- over Flight

    def _send(self, runs: Sequence[_Run]) -> None:
        by_host: dict[HostId, list[tuple[_Run, TransferTarget]]] = {}
        for run in runs:
            if run.targets:
                run.kept_records()
            for target in run.targets:
                by_host.setdefault(target.host, []).append((run, target))
        if not by_host:
            return
        for host in by_host:
            if host not in self._sinks:
                self._sinks[host] = self._connect()
        with ThreadPoolExecutor(min(THREADS_MAX, len(by_host)), "rows") as pool:
            sent = [pool.submit(self._send_to_host, host, orders) for host, orders in by_host.items()]
            for one in sent:
                self._lost.update(one.result())

    def _send_to_host(self, host: HostId, orders: Sequence[tuple[_Run, TransferTarget]]) -> dict[TransferId, EblaError]:
        """One after another; a node that is gone is not asked again."""
        gone: EblaError | None = None
        lost = {}
        for run, target in orders:
            attempt = new_attempt()
            try:
                if gone is None:
                    run.note(target, attempt, self._sinks[host].put_records(target, attempt, run.kept_records()))
            except _GONE as error:
                gone = error
            if gone is not None:
                lost[target.transfer] = gone
                run.errors.append(gone)
        return lost


def new_attempt() -> AttemptId:
    """A worker forks from a parent that has state of its own; this comes from the kernel."""
    return AttemptId(uuid.uuid4())


def _written(target: TransferTarget, attempt: AttemptId, records: Iterable[Record]) -> tuple[StagedFile, str]:
    path = _made_folder(target, attempt)
    size_bytes = checksum = 0
    with open(path, "xb", buffering=0) as file:
        for record in records:
            for part in record:
                _write_all(file.fileno(), part)
                size_bytes += len(part)
                checksum = crc32(part, checksum)
    return StagedFile(ROWS_NAME, size_bytes, checksum), path


def _write_all(descriptor: int, data: bytes | memoryview) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _linked(origin: str, target: TransferTarget, attempt: AttemptId) -> None:
    path = _made_folder(target, attempt)
    try:
        os.link(origin, path)
    except OSError as error:
        if error.errno not in _NOT_LINKABLE:
            raise
        shutil.copyfile(origin, path)


def _made_folder(target: TransferTarget, attempt: AttemptId) -> str:
    """Where the rows of an attempt go, in a folder of its own. Not its parents: those of a session that was closed are
    gone, and stay so."""
    folder = f"{target.folder}/{attempt}"
    os.mkdir(folder, mode=0o700)
    return f"{folder}/{ROWS_NAME}"


def _no_replica(run: _Run, lost: dict[TransferId, EblaError]) -> EblaError:
    errors = run.errors or list(lost.values())
    if not errors:
        return Unavailable("a range of the table has no replica that could be written to")
    told = "; ".join(dict.fromkeys(error.message for error in errors))
    return type(errors[0])(
        f"no replica of a range could be reached ({told})", advice="see `ebla status`, and run the job again"
    )
