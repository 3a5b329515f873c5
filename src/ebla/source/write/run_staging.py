"""Stages runs of rows on every replica they belong to.

On the machine of the node a task writes the run to a file itself, once; the other nodes of that machine get it by a
hard link. Nothing a task writes there is trusted: the seal checks every file before it counts. To other machines a run
goes over Flight, with one thread for each node.

A replica that cannot be reached is given up for the rest of the task, as long as another one gets the rows. The commit
learns of it, and either copies the rows there or leaves that replica to repair.
"""

import errno
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from ebla.model.errors import DiskFull, EblaError, Unavailable
from ebla.model.identity import AttemptId, HostId, TransferId
from ebla.model.transfers import ROWS_NAME, StagedFile, TransferTarget
from ebla.source.write.sorted_runs import RoutedRows
from ebla.storage.codec.checksums import crc32
from ebla.storage.codec.row_file import Record, record_parts_of, records_of
from ebla.transfers.flight_client import FlightClient
from ebla.transfers.link_path import NOT_LINKABLE, is_reachable_folder
from ebla.transfers.spark_worker import new_attempt_id
from ebla.wire.table_calls import StagedRun

RECORD_BYTES = 2 << 20
THREADS_MAX = 8

_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)


@dataclass(slots=True, kw_only=True)
class _Run:
    """Rows that go to several targets, all of them to each."""

    rows: RoutedRows
    targets: list[TransferTarget]
    """That do not have the rows yet."""
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
    """For one task, or for a commit. `connect` makes a client; each node has its own."""

    def __init__(
        self, targets: Sequence[TransferTarget], connect: Callable[[], FlightClient], *, uses_local_files: bool = True
    ) -> None:
        self._targets = tuple(targets)
        self._connect = connect
        self._uses_local_files = uses_local_files
        self._clients: dict[HostId, FlightClient] = {}
        self._is_local: dict[TransferId, bool] = {}
        self._runs: list[StagedRun] = []
        self._lost: dict[TransferId, EblaError] = {}

    @property
    def runs(self) -> tuple[StagedRun, ...]:
        """Of transfers that have all rows so far."""
        return tuple(run for run in self._runs if run.transfer not in self._lost)

    @property
    def lost(self) -> tuple[TransferId, ...]:
        """Transfers that lack rows, because their node could not be reached."""
        return tuple(self._lost)

    def stage(self, parts: Iterable[RoutedRows]) -> None:
        """Returns when all rows are staged. Raises where a part has reached no replica. What is written on this machine
        is not kept in memory; the rest goes to all nodes at the same time."""
        runs = []
        for part in parts:
            targets = [self._targets[place] for place in part.targets]
            run = _Run(rows=part, targets=[target for target in targets if target.transfer not in self._lost])
            self._write_locally(run)
            if run.staged and not run.targets:
                self._runs += run.staged
            else:
                runs.append(run)
        self._send(runs)
        for run in runs:
            if not run.staged:
                raise _no_replica(run, self._lost)
            self._runs += run.staged

    def close(self) -> None:
        for client in self._clients.values():
            client.close()
        self._clients.clear()

    # ---- on this machine

    def _write_locally(self, run: _Run) -> None:
        local = [target for target in run.targets if self._is_on_this_machine(target)]
        first: str | None = None
        file = StagedFile(name=ROWS_NAME, size_bytes=0)
        for target in local:
            attempt = new_attempt_id()
            try:
                if first is None:
                    file, first = _write_file(target, attempt, run.record_parts())
                else:
                    _link_file(first, target, attempt)
            except OSError as error:
                if error.errno in _NO_SPACE:
                    raise DiskFull(
                        f"the disk of node {target.host} has no room for {run.rows.size_bytes} bytes of rows",
                        advice="make room there, and run the job again",
                    ) from error
                # Over Flight the node itself reports what is wrong.
                self._is_local[target.transfer] = False
            else:
                run.note(target, attempt, file)
                run.targets.remove(target)

    def _is_on_this_machine(self, target: TransferTarget) -> bool:
        known = self._is_local.get(target.transfer)
        if known is None:
            known = self._is_local[target.transfer] = (
                self._uses_local_files
                and is_reachable_folder(target.machine, target.folder)
                and os.access(target.folder, os.W_OK)
            )
        return known

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
            if host not in self._clients:
                self._clients[host] = self._connect()
        with ThreadPoolExecutor(min(THREADS_MAX, len(by_host)), "rows") as pool:
            sent = [pool.submit(self._send_to_host, host, puts) for host, puts in by_host.items()]
            for one in sent:
                self._lost.update(one.result())

    def _send_to_host(self, host: HostId, puts: Sequence[tuple[_Run, TransferTarget]]) -> dict[TransferId, EblaError]:
        """One after another. After a transient error the node is not tried again: it is down, or was too busy for as
        long as the client retried."""
        failure: EblaError | None = None
        lost = {}
        for run, target in puts:
            attempt = new_attempt_id()
            try:
                if failure is None:
                    run.note(target, attempt, self._clients[host].put_records(target, attempt, run.kept_records()))
            except EblaError as error:
                if not error.is_transient:
                    raise
                failure = error
            if failure is not None:
                lost[target.transfer] = failure
                run.errors.append(failure)
        return lost


def _write_file(target: TransferTarget, attempt: AttemptId, records: Iterable[Record]) -> tuple[StagedFile, str]:
    path = _make_attempt_folder(target, attempt)
    size_bytes = checksum = 0
    with open(path, "xb", buffering=0) as file:
        for record in records:
            for part in record:
                _write_all(file.fileno(), part)
                size_bytes += len(part)
                checksum = crc32(part, checksum)
    return StagedFile(name=ROWS_NAME, size_bytes=size_bytes, checksum=checksum), path


def _write_all(descriptor: int, data: bytes | memoryview) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _link_file(first: str, target: TransferTarget, attempt: AttemptId) -> None:
    path = _make_attempt_folder(target, attempt)
    try:
        os.link(first, path)
    except OSError as error:
        if error.errno not in NOT_LINKABLE:
            raise
        shutil.copyfile(first, path)


def _make_attempt_folder(target: TransferTarget, attempt: AttemptId) -> str:
    """Returns the path for the rows. Does not make the folder's parents: those of a closed session are gone, and must
    stay so."""
    folder = f"{target.folder}/{attempt}"
    os.mkdir(folder, mode=0o700)
    return f"{folder}/{ROWS_NAME}"


def _no_replica(run: _Run, lost: dict[TransferId, EblaError]) -> EblaError:
    errors = run.errors or list(lost.values())
    if not errors:
        return Unavailable("a range of the table has no replica that could be written to")
    causes = "; ".join(dict.fromkeys(error.message for error in errors))
    return type(errors[0])(
        f"no replica of a range could be reached ({causes})", advice="see `ebla status`, and run the job again"
    )
