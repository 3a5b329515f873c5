"""A task's rows: at every replica, whole, whatever the size; few of them in its message."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest
from tests.unit.source.write_fakes import HOSTS, JOB, FakeNodes, down, plan_of, target
from tests.unit.storage.random_rows import column, table

from ebla.model.errors import DiskFull, InvalidRequest, Stale, Unreachable
from ebla.model.schema import ColumnKind
from ebla.model.token import WHOLE_RING
from ebla.model.transfers import TransferTarget
from ebla.source.write import run_staging, task_writer
from ebla.source.write.encode_rows import RowEncoding, encode_rows
from ebla.source.write.run_staging import Stager
from ebla.source.write.small_writes import unpack_batches
from ebla.source.write.sorted_runs import RoutedRows, route_rows
from ebla.source.write.task_writer import coalesce_batches, write_rows
from ebla.source.write.write_job import WriteTaskResult, WriteTaskSpec
from ebla.storage.codec.checksums import crc32
from ebla.storage.codec.row_file import decode_records
from ebla.storage.columns.load_encoding import WriteStamp
from ebla.storage.merge.chunk_merge import sort_rows
from ebla.wire.table_calls import StagingRoute

NARROW = table(column("p", "int", ColumnKind.PARTITION_KEY), column("v", "text"))
FORM = RowEncoding(schema=NARROW, stamp=WriteStamp(timestamp_us=1_700_000_000_000_000, at_s=1_700_000_000))
TABLETS = WHOLE_RING.split(4)


def batch(start: int, count: int) -> pa.RecordBatch:
    return pa.record_batch({"p": pa.array(range(start, start + count), pa.int32()), "v": pa.array(["v"] * count)})


def expected(batches: list[pa.RecordBatch]) -> dict[bytes, bytes]:
    return {key: value for one in batches for key, value in zip(*(part.to_pylist() for part in encode_rows(FORM, one)))}


def held(nodes: FakeNodes, rows: WriteTaskResult, host: int) -> dict[bytes, bytes]:
    found: dict[bytes, bytes] = {}
    for run in rows.runs:
        if run.host == HOSTS[host]:
            items = nodes.rows(run)
            keys = [key for key, _ in items]
            assert keys == sorted(set(keys)), "a run is in key order, each key once"
            assert len(items) == run.rows
            found |= dict(items)
    return found


def write(
    nodes: FakeNodes, batches: list[pa.RecordBatch], small_rows: int = 0, run_bytes: int = 1 << 20
) -> WriteTaskResult:
    order = WriteTaskSpec(plan=plan_of(NARROW, TABLETS, [0, 1, 2]), job=JOB, small_rows=small_rows, run_bytes=run_bytes)
    return write_rows(order, FORM, iter(batches), nodes.connect)


@pytest.mark.parametrize("run_bytes", [1_000, 1 << 20])
def test_every_replica_has_every_row(run_bytes: int) -> None:
    nodes, batches = FakeNodes(), [batch(start, 300) for start in range(0, 3_000, 300)]
    found = write(nodes, batches, run_bytes=run_bytes)
    for host in range(3):
        assert held(nodes, found, host) == expected(batches)
    assert found.rows == 3_000
    assert found.lost == ()
    assert len({run.attempt for run in found.runs}) == len(found.runs), "an attempt for each run and target"


def test_large_input_makes_several_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_writer, "COALESCED_ROWS_MAX", 300)
    nodes, batches = FakeNodes(), [batch(start, 300) for start in range(0, 3_000, 300)]
    found = write(nodes, batches, run_bytes=10_000)
    assert len(found.runs) > 3 * len(TABLETS) * 3
    assert held(nodes, found, 1) == expected(batches)


def test_runs_have_a_bound_whatever_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_writer, "RUN_BYTES_MAX", 10_000)
    nodes, batches = FakeNodes(), [batch(start, 300) for start in range(0, 3_000, 300)]
    found = write(nodes, batches, run_bytes=1 << 40)
    assert len(found.runs) > 3 * len(TABLETS)
    assert held(nodes, found, 1) == expected(batches)


def test_few_rows_go_along_with_the_message() -> None:
    nodes = FakeNodes()
    found = write(nodes, [batch(0, 4), batch(0, 0), batch(4, 6)], small_rows=10)
    assert nodes.puts == []
    assert (found.rows, found.runs) == (10, ())
    assert [row for one in unpack_batches(found.small) for row in one.to_pylist()] == [
        *batch(0, 4).to_pylist(), *batch(4, 6).to_pylist()
    ]  # fmt: skip
    assert write(nodes, [batch(0, 11)], small_rows=10).small == b""
    assert write(nodes, [], small_rows=10) == WriteTaskResult(job=JOB)
    assert write(nodes, [], small_rows=0) == WriteTaskResult(job=JOB)


def test_few_rows_that_are_large_are_staged() -> None:
    wide = pa.record_batch({"p": pa.array([1], pa.int32()), "v": pa.array(["x" * 300_000])})
    found = write(FakeNodes(), [wide], small_rows=10)
    assert found.small == b""
    assert len(found.runs) == 3


def test_wrong_rows_are_told_by_the_task_though_they_are_few() -> None:
    wrong = pa.record_batch({"p": pa.array([None], pa.int32()), "v": pa.array(["x"])})
    with pytest.raises(InvalidRequest, match="key column 'p'"):
        write(FakeNodes(), [wrong], small_rows=10)


def test_a_replica_that_is_down_is_told_of_and_nothing_of_it_counts() -> None:
    nodes, batches = FakeNodes(broken={HOSTS[1]: down()}), [batch(0, 500)]
    found = write(nodes, batches)
    assert {run.host for run in found.runs} == {HOSTS[0], HOSTS[2]}
    gone = {target(1, one).transfer for one in TABLETS}
    assert set(found.lost) == gone
    assert nodes.puts.count(HOSTS[1]) == 1, "a node that is gone is asked once"
    assert held(nodes, found, 2) == expected(batches)


def test_a_replica_that_goes_down_between_runs_counts_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_writer, "COALESCED_ROWS_MAX", 300)
    nodes = FakeNodes()

    batches = [batch(start, 300) for start in range(0, 1_200, 300)]

    def coming() -> Iterator[pa.RecordBatch]:
        for place, one in enumerate(batches):
            if place == 3:
                nodes.broken[HOSTS[1]] = down()
            yield one

    order = WriteTaskSpec(plan=plan_of(NARROW, TABLETS, [0, 1]), job=JOB, run_bytes=10_000)
    found = write_rows(order, FORM, coming(), nodes.connect)
    assert {run.host for run in found.runs} == {HOSTS[0]}
    assert len(found.lost) == len(TABLETS)
    assert held(nodes, found, 0) == expected(batches)


def test_without_any_replica_the_task_fails() -> None:
    nodes = FakeNodes(broken={HOSTS[number]: down() for number in range(3)})
    with pytest.raises(Unreachable, match=r"no replica of a range could be reached \(it is down\)"):
        write(nodes, [batch(0, 500)])


def test_what_is_wrong_with_the_job_is_not_taken_for_a_node_that_is_down() -> None:
    nodes = FakeNodes(broken={HOSTS[1]: Stale("the session is closed")})
    with pytest.raises(Stale):
        write(nodes, [batch(0, 500)])


# ---- batches


@pytest.mark.parametrize("seed", range(5))
def test_batches_are_joined_and_cut(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_writer, "COALESCED_ROWS_MAX", 100)
    rng = Random(seed)
    sizes = [rng.choice([0, 1, 10, 1_000]) for _ in range(20)]
    given = [batch(sum(sizes[:place]), size) for place, size in enumerate(sizes)]
    found = list(coalesce_batches(given, 2_000))
    assert [row for one in found for row in one.to_pylist()] == [row for one in given for row in one.to_pylist()]
    assert all(0 < one.nbytes < 5_000 for one in found)
    assert len(found) < sum(1 + one.nbytes // 2_000 for one in given)


# ---- on the node's machine


def local_target(tmp_path: Path, host: int, machine: str) -> TransferTarget:
    folder = tmp_path / str(host)
    folder.mkdir()
    (folder / machine).touch()
    return target(host, WHOLE_RING, folder=folder, machine=machine)


def here() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip() + ".word"


def routed_to(count: int) -> tuple[RoutedRows, ...]:
    rows = sort_rows(NARROW, *encode_rows(FORM, batch(0, 500)))
    return route_rows(rows, [StagingRoute(WHOLE_RING, tuple(range(count)))])


def test_on_one_machine_a_run_is_written_once(tmp_path: Path) -> None:
    targets = [local_target(tmp_path, host, here()) for host in range(3)]
    nodes = FakeNodes()
    stager = Stager(targets, nodes.connect)
    stager.stage(routed_to(3))
    assert nodes.puts == []
    paths = [Path(one.folder, str(run.attempt), "rows") for one, run in zip(targets, stager.runs, strict=True)]
    assert len({os.stat(path).st_ino for path in paths}) == 1
    for path, run in zip(paths, stager.runs, strict=True):
        data = path.read_bytes()
        assert (len(data), crc32(data, 0)) == (run.file.size_bytes, run.file.checksum)
        assert sum(len(one) for one in decode_records(data)) == run.rows == 500


@pytest.mark.parametrize("machine", ["another.word", ""])
def test_elsewhere_it_goes_over_flight(tmp_path: Path, machine: str) -> None:
    targets = [local_target(tmp_path, 0, here()), target(1, WHOLE_RING, folder=tmp_path, machine=machine)]
    nodes = FakeNodes()
    stager = Stager(targets, nodes.connect)
    stager.stage(routed_to(2))
    assert nodes.puts == [HOSTS[1]]
    assert [run.host for run in stager.runs] == [HOSTS[0], HOSTS[1]]


def test_the_short_cut_may_be_left_out(tmp_path: Path) -> None:
    nodes = FakeNodes()
    stager = Stager([local_target(tmp_path, 0, here())], nodes.connect, uses_local_files=False)
    stager.stage(routed_to(1))
    assert nodes.puts == [HOSTS[0]]


def test_a_folder_that_is_gone_is_not_made_again(tmp_path: Path) -> None:
    """The session is closed: over Flight the node says so."""
    gone = local_target(tmp_path, 0, here())
    nodes = FakeNodes(broken={HOSTS[0]: Stale("the session is closed")})
    stager = Stager([gone], nodes.connect)
    stager.stage(())
    assert stager._is_on_this_machine(gone)
    for path in Path(gone.folder).iterdir():
        path.unlink()
    Path(gone.folder).rmdir()
    with pytest.raises(Stale):
        stager.stage(routed_to(1))
    assert not Path(gone.folder).exists()


def test_where_links_are_not_possible_bytes_are_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: str, path: str) -> None:
        raise OSError(errno.EXDEV, "another disk", path)

    monkeypatch.setattr(os, "link", refuse)
    targets = [local_target(tmp_path, host, here()) for host in range(2)]
    stager = Stager(targets, FakeNodes().connect)
    stager.stage(routed_to(2))
    first, second = (Path(one.folder, str(run.attempt), "rows")
                     for one, run in zip(targets, stager.runs, strict=True))  # fmt: skip
    assert first.read_bytes() == second.read_bytes()
    assert os.stat(first).st_ino != os.stat(second).st_ino


def test_a_full_disk_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(run_staging, "_write_all", full)
    stager = Stager([local_target(tmp_path, 0, here())], FakeNodes().connect)
    with pytest.raises(DiskFull, match="has no room"):
        stager.stage(routed_to(1))
