"""Real nodes with a pipeline on Spark that tests may kill, and tables whose replicas are written and read one by one,
so that no router and no read repair hides what a transfer has brought."""

import itertools
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import psutil
from tests.cluster.conftest import LocalNodes, eventually
from tests.cluster.group0_load import ask
from tests.cluster.rows_load import SCHEMA_MS, ask_shard
from tests.cluster.small_disks import move_to, small_disk
from tests.pipeline.served_nodes import NODES, PATIENCE_S, STEADY, ServedNodes, slowly

from ebla.cli.jobs.job_context import JobCommandContext, with_job_context
from ebla.model.cql_types import parse_type
from ebla.model.errors import EblaError
from ebla.model.identity import JobId, TableId, TopologyVersion
from ebla.model.records.jobs import (
    ENDED_STATES,
    CompareReplicas,
    CopyTablets,
    JobRecord,
    JobSpec,
    JobState,
    StreamRange,
)
from ebla.model.rows import Cell, Deletion, Row
from ebla.model.schema import Column, ColumnKind, new_schema
from ebla.model.token import TOKEN_MAX, TOKEN_MIN, Token, TokenRange, token_of
from ebla.pipeline.java_process import descendants, is_running
from ebla.ports.transfer_engine import EngineState
from ebla.storage.codec.key_codec import KeyKind, partition_key_of, partition_prefix, row_key, split_key
from ebla.storage.codec.row_codec import decode_head, decode_row, encode_row
from ebla.topology.snapshot import Keyspace, Replication
from ebla.topology.states import Strategy
from ebla.wire.group0_messages import TransferLeadershipRequest
from ebla.wire.row_messages import ReadRowsRequest, RowWrite, WriteRowsRequest
from ebla.wire.schema_messages import CreateKeyspaceRequest, CreateTableRequest, SchemaRequest
from ebla.wire.verbs import GROUP0_TRANSFER, READ_ROWS, SCHEMA, WRITE_ROWS

T = TypeVar("T")
RATE = 3 << 19
"""Bytes per second into and out of each node: slow enough to interrupt a transfer of some MiB."""
EMBEDDED = "local[2]"
SETTINGS = (
    "pipeline.enabled=true",
    f"pipeline.master={EMBEDDED}",
    f"limits.transfer_bytes_per_second_max={RATE}",
    "fault_points=true",
    "log_format=json",
)
SMALL_DISK, SMALL_DISK_BYTES = "small-disk", 400 << 20
WHOLE_RING = TokenRange(Token(TOKEN_MIN), Token(TOKEN_MAX))


class PipelineCluster(ServedNodes):
    """Nodes with one pipeline, beside the leader."""

    def __init__(self, local: LocalNodes) -> None:
        super().__init__(local)
        self.tasks_root: int | None = None
        """The process below which Spark runs its tasks; None: Spark's Java process."""
        new_keyspace(self, LARGE, tablets=1)
        self.wait_pipeline()

    # ---- nodes

    def lead(self, number: int) -> None:
        """Makes the node the leader and waits for its pipeline."""
        leader = self.leader
        if leader != number:
            ask(self.node(leader), GROUP0_TRANSFER, TransferLeadershipRequest(self.host(number)), 20_000)
            slowly(lambda: self.leader == number, "the lead was handed over")
        self.wait_pipeline()

    def restart_with_master(self, number: int, master: str, secret_file: Path | str = "") -> None:
        """The node's pipeline runs its tasks at that master once the node leads."""
        self.stop_node(number)
        path = self.node(number).options_path
        kept = [line for line in path.read_text().splitlines() if not line.startswith(("master = ", "secret_file = "))]
        place = kept.index("[pipeline]") + 1
        path.write_text(
            "\n".join([*kept[:place], f'master = "{master}"', f'secret_file = "{secret_file}"', *kept[place:]]) + "\n"
        )
        self.start_node(number)

    def kill_child(self, name: str, number: int) -> int:
        pid = self.local.pid(name, number)
        os.kill(pid, signal.SIGKILL)
        return pid

    # ---- the pipeline and Spark below it

    def wait_pipeline(self) -> None:
        """Waits until it is ready beside the current leader."""

        def is_ready() -> bool:
            try:
                state = self.jobs(lambda access: access.jobs.pipeline())
            except EblaError:
                return False
            leader = self.host(self.leader)
            return state is not None and state.state == EngineState.READY and state.host == leader

        slowly(is_ready, "the pipeline is ready beside the leader", PATIENCE_S)

    @property
    def pipeline_pid(self) -> int:
        found: list[int] = []

        def is_there() -> bool:
            processes = self.local.node(self.leader).processes
            found[:] = [each.pid for each in processes if each.is_pipeline and each.pid is not None]
            return bool(found)

        slowly(is_there, "the leader has a pipeline", 60.0)
        return found[0]

    @property
    def java(self) -> psutil.Process:
        """Spark's driver; an embedded Spark also runs its tasks there."""
        (found,) = (mark for mark in descendants(self.pipeline_pid) if program_of(mark) == "java")
        return found

    @property
    def workers(self) -> tuple[psutil.Process, ...]:
        return workers_of(self._above_workers)

    @property
    def _above_workers(self) -> int:
        return self.java.pid if self.tasks_root is None else self.tasks_root

    # ---- jobs

    def jobs(self, work: Callable[[JobCommandContext], Awaitable[T]]) -> T:
        return with_job_context(self.local.data, None, work)

    def patiently(self, work: Callable[[JobCommandContext], Awaitable[T]]) -> T:
        """Retries: the node that was called may be the one that a test has just killed."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                return self.jobs(work)
            except EblaError:
                if time.monotonic() > deadline:
                    raise

    def submit(self, spec: JobSpec, what: str = "a test's") -> JobId:
        return self.patiently(lambda access: access.jobs.submit(spec, what, 300_000)).id

    def job(self, job: JobId) -> JobRecord:
        return self.patiently(lambda access: access.jobs.find(str(job)))

    def ended(self, job: JobId) -> JobRecord:
        """Waits for its final state."""
        seen: list[JobRecord] = []

        def has_ended() -> bool:
            seen[:] = [self.job(job)]
            return seen[0].state in ENDED_STATES

        try:
            slowly(has_ended, f"job {job} has ended", PATIENCE_S)
        except AssertionError as error:
            raise AssertionError(f"{error}; it is {seen}") from None
        return seen[0]

    def done(self, job: JobId) -> JobRecord:
        found = self.ended(job)
        assert (found.state, found.session) == (JobState.DONE, None), found
        return found

    def cancelled(self, job: JobId) -> JobRecord:
        """Cancels it, and returns when it can have no effect any more."""
        self.patiently(lambda access: access.jobs.cancel(job))
        found = self.ended(job)
        assert (found.state, found.session) == (JobState.CANCELLED, None), found
        return found

    def compare(self, table: TableId, *, heal: bool = False) -> JobRecord:
        return self.done(self.submit(CompareReplicas(table, heal=heal)))

    # ---- bulk

    def hold_in_the_middle(self, number: int, job: JobId) -> tuple[psutil.Process, ...]:
        """Freezes the worker that sends the job's bytes to the node, once some but not all have arrived."""
        slowly(lambda: self.job(job).session is not None, f"job {job} runs")
        # Before anything arrives: finding it takes a while, and everything might arrive meanwhile.
        above = self._above_workers
        eventually(lambda: self._received(number, job) > 0, f"job {job} is on its way", PATIENCE_S)
        # Another pipeline may have taken the job over meanwhile.
        held = self._workers_to(number, above) or self._workers_to(number, self._above_workers)
        signalled(held, signal.SIGSTOP)
        assert held, f"job {job} was too quick: {self.job(job)}"
        return held

    def _workers_to(self, number: int, above: int) -> tuple[psutil.Process, ...]:
        node = self.node(number).options
        return tuple(mark for mark in workers_of(above) if talks_to(mark, node.address, node.ports.bulk))

    @contextmanager
    def held_in_the_middle(self, number: int, job: JobId) -> Iterator[None]:
        held = self.hold_in_the_middle(number, job)
        try:
            yield
        finally:
            signalled(held, signal.SIGCONT)

    def _received(self, number: int, job: JobId) -> int:
        """Bytes received in the job's current session."""
        session = self.job(job).session
        status = None if session is None else self.bulk_status(number, session)
        return 0 if status is None else sum(one.received_bytes for one in status.stagings)


def run_command(cluster: PipelineCluster, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs `ebla …`."""
    command = [sys.executable, "-m", "ebla", *arguments, "--data", str(cluster.local.data)]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)


# ---- processes


def program_of(mark: psutil.Process) -> str:
    try:
        words = Path(f"/proc/{mark.pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return ""
    return "pyspark" if b"pyspark.daemon" in words else Path(words[0].decode()).name


def python_processes(root: int) -> tuple[psutil.Process, ...]:
    """Python processes of Spark's tasks below a process, the daemon first: it would end workers that do not answer."""
    return tuple(mark for mark in descendants(root) if program_of(mark) == "pyspark")


def workers_of(root: int) -> tuple[psutil.Process, ...]:
    """Workers that run tasks or wait for some."""
    return tuple(mark for mark in python_processes(root) if not descendants(mark.pid))


def talks_to(mark: psutil.Process, address: str, port: int) -> bool:
    """Whether the process has a connection to that address."""
    remote = f"{socket.inet_aton(address)[::-1].hex().upper()}:{port:04X}"
    # A dual-stack socket has the IPv4 address at the end of its IPv6 address.
    known = (Path("/proc/net", name).read_text().splitlines()[1:] for name in ("tcp", "tcp6"))
    connections = [line.split() for line in itertools.chain(*known)]
    wanted = {f"socket:[{fields[9]}]" for fields in connections if fields[2].endswith(remote)}
    try:
        return any(os.readlink(entry) in wanted for entry in Path(f"/proc/{mark.pid}/fd").iterdir())
    except FileNotFoundError:
        return False


def signalled(marks: Sequence[psutil.Process], number: signal.Signals) -> None:
    for mark in marks:
        if is_running(mark):
            os.kill(mark.pid, number)


@contextmanager
def frozen(marks: Sequence[psutil.Process]) -> Iterator[None]:
    """Always continues them at the end."""
    signalled(marks, signal.SIGSTOP)
    try:
        yield
    finally:
        signalled(marks, signal.SIGCONT)


# ---- tables

COLUMNS = (
    Column(name="k", type=parse_type("int"), kind=ColumnKind.PARTITION_KEY),
    Column(name="v", type=parse_type("blob"), kind=ColumnKind.REGULAR),
)
Written = tuple[int, bytes | None]
"""A timestamp and a value; None if the row was deleted."""
VALUE_BYTES = 8_000
LARGE = "large"
"""A keyspace that every cluster has, whose tables have one tablet."""
LARGE_ROWS = 600
BATCH_BYTES = 256 << 10


def new_keyspace(cluster: PipelineCluster, name: str, *, tablets: int) -> None:
    """`tablets`: per table; 0 puts the tables on vnodes."""
    replication = Replication(Strategy.NETWORK_TOPOLOGY, (("dc1", NODES),))
    spec = CreateKeyspaceRequest(
        Keyspace(name=name, replication=replication, on_tablets=bool(tablets), initial_tablets=tablets)
    )
    ask(cluster.node(0), SCHEMA, SchemaRequest(spec), SCHEMA_MS)


class Replicas:
    """A table, and what each of its replicas must hold: the newest write of each key."""

    def __init__(self, cluster: PipelineCluster, keyspace: str, name: str) -> None:
        self._cluster = cluster
        self.name = f"{keyspace}.{name}"
        spec = CreateTableRequest(keyspace=keyspace, name=name, columns=COLUMNS)
        table = ask(cluster.node(cluster.leader), SCHEMA, SchemaRequest(spec), SCHEMA_MS).table
        assert table is not None
        self.table: TableId = table
        self.expected: list[dict[int, Written]] = [{} for _ in range(NODES)]
        self._schema = new_schema(table, keyspace, name, COLUMNS)
        self._column = self._schema.column("v").number

    # ---- jobs of the pipeline

    def copy(self, source: int, target: int, *, short_cut: bool = True, tablet: int = 0) -> JobId:
        return self._cluster.submit(
            CopyTablets(
                table=self.table,
                tablets=(tablet,),
                source=self._cluster.host(source),
                target=self._cluster.host(target),
                short_cut=short_cut,
            ),
            f"copy {self.name}",
        )

    def stream(self, sources: Sequence[int], target: int, within: TokenRange = WHOLE_RING) -> JobId:
        hosts = tuple(self._cluster.host(number) for number in sources)
        spec = StreamRange(table=self.table, range=within, sources=hosts, target=self._cluster.host(target))
        return self._cluster.submit(spec, f"stream {self.name}")

    def tablet_range(self, number: int) -> TokenRange:
        async def look(access: JobCommandContext) -> TokenRange:
            tablets = access.snapshot.tablets[self.table]
            return TokenRange(Token(tablets.after_token(number)), Token(tablets.last_token(number)))

        return self._cluster.patiently(look)

    # ---- writes to one replica

    def write(self, number: int, rows: Mapping[int, Written]) -> None:
        keys, node = list(rows), self._cluster.node(number)
        step = max(1, BATCH_BYTES // VALUE_BYTES)
        version = self._version(number)
        for start in range(0, len(keys), step):
            items = (self._item(key, rows[key]) for key in keys[start : start + step])
            request = WriteRowsRequest(tuple(RowWrite(version, self.table, (item,)) for item in items))
            answer = ask_shard(node, 0, WRITE_ROWS, request, 20_000)
            assert not answer.failures, answer.failures[0]
        self.note(number, rows)

    def note(self, number: int, rows: Mapping[int, Written]) -> None:
        """Expects the replica to hold these as well."""
        known = self.expected[number]
        for key, written in rows.items():
            known[key] = newest(known.get(key, written), written)

    def brought(self, sources: Sequence[int], target: int, within: TokenRange = WHOLE_RING) -> None:
        """Expects the target to hold what the sources hold of a range."""
        for source in sources:
            rows = self.expected[source]
            self.note(target, {key: rows[key] for key in rows if token_of(key.to_bytes(4)) in within})

    # ---- reads from one replica

    def held(self, number: int) -> dict[int, Written]:
        found: dict[int, Written] = {}
        start, node = b"", self._cluster.node(number)
        while True:
            version, now_s = self._version(number), int(time.time())
            request = ReadRowsRequest(
                version=version, table=self.table, spans=((start, None),), rows_max=1_000, now_s=now_s
            )
            page = ask_shard(node, 0, READ_ROWS, request, 20_000)
            for key, value in page.items:
                number_of = int.from_bytes(partition_key_of(key))
                written = self._written(key, value)
                if written is not None:
                    found[number_of] = newest(found.get(number_of, written), written)
            if page.is_whole:
                return found
            start = page.last_key + b"\0"

    def check(self, *numbers: int) -> None:
        """Nothing is missing, nothing is there that was not written, and nothing deleted or overwritten is back."""
        for number in numbers:
            found, wanted = self.held(number), self.expected[number]
            wrong = [key for key in sorted({*found, *wanted}) if found.get(key) != wanted.get(key)]
            examples = [(key, _brief(found.get(key)), _brief(wanted.get(key))) for key in wrong[:5]]
            assert not wrong, f"node {number}: {len(wrong)} of {len(wanted)} rows, (key, found, expected): {examples}"

    def _version(self, number: int) -> TopologyVersion:
        ring = self._cluster.local.node(number).ring
        assert ring is not None
        return TopologyVersion(ring.version)

    def _item(self, key: int, written: Written) -> tuple[bytes, bytes]:
        timestamp_us, value = written
        if value is None:
            row = Row(marker=None, deletion=Deletion(timestamp_us, int(time.time())))
        else:
            row = Row(marker=None, deletion=None, cells={self._column: Cell(timestamp_us=timestamp_us, value=value)})
        serialized = key.to_bytes(4)
        prefix = partition_prefix(token_of(serialized), serialized)
        return row_key(prefix), encode_row(row, self._schema.version, self._schema.layouts[-1])

    def _written(self, key: bytes, value: bytes) -> Written | None:
        if split_key(key)[1] is KeyKind.PARTITION_HEAD:
            deletion = decode_head(value).deletion
            return None if deletion is None else (deletion.timestamp_us, None)
        row = decode_row(value, self._schema.layouts)
        cell = row.cells.get(self._column)
        if cell is not None:
            return cell.timestamp_us, cell.value
        return None if row.deletion is None else (row.deletion.timestamp_us, None)


def newest(one: Written, other: Written) -> Written:
    return max(one, other, key=lambda written: written[0])


def _brief(written: Written | None) -> object:
    return None if written is None else (written[0], None if written[1] is None else written[1][:4].hex())


def large_table(cluster: PipelineCluster, name: str, places: tuple[int, int] = (0, 1)) -> Replicas:
    """A table of one tablet. The first replica holds some MiB; the second holds older, newer and deleted versions
    of them, and rows of its own."""
    first, second = places
    table = Replicas(cluster, LARGE, name)
    table.write(first, some_rows(range(LARGE_ROWS), 2_000, 1) | deleted(range(50, 60), 2_000))
    older, newer = some_rows(range(20), 1_000, 2, 100), some_rows(range(20, 40), 3_000, 3, 100)
    own = some_rows(range(LARGE_ROWS, LARGE_ROWS + 20), 2_000, 4, 100)
    table.write(second, older | newer | own | deleted(range(40, 50), 3_000) | some_rows(range(50, 60), 1_000, 5, 100))
    return table


def some_rows(keys: Sequence[int], timestamp_us: int, seed: int, size_bytes: int = VALUE_BYTES) -> dict[int, Written]:
    """Values that do not compress."""
    rng = random.Random(seed)
    return {key: (timestamp_us, rng.randbytes(size_bytes)) for key in keys}


def deleted(keys: Sequence[int], timestamp_us: int) -> dict[int, Written]:
    return dict.fromkeys(keys, (timestamp_us, None))


# ---- the cluster of a test run


@contextmanager
def running_cluster(folder: Path) -> Iterator[PipelineCluster]:
    """Its last node has its own file system, if mounting is allowed."""
    local, small = LocalNodes(folder / "nodes", NODES, (*STEADY, *SETTINGS)), folder / SMALL_DISK
    with small_disk(small, SMALL_DISK_BYTES) as is_mounted:
        if is_mounted:
            move_to(local.nodes[NODES - 1], small)
        try:
            yield PipelineCluster(local)
        finally:
            local.end_all()


def small_disk_of(cluster: PipelineCluster) -> Path | None:
    """The file system of the last node; None if it has none of its own."""
    small = cluster.local.data.parent / SMALL_DISK
    return small if small.is_mount() else None
