"""Our code where it is not installed: another Python, without this package, is handed what Spark would hand it."""

import os
import stat
import subprocess
from pathlib import Path

import pytest
from pyspark import cloudpickle
from pyspark.sql.datasource import InputPartition
from tests.pipeline.standalone import bare_python

from ebla.source import code_shipping
from ebla.source.read.split_reader import SplitReader
from pyspark_ebla import DefaultSource

SHOWN = '{"type":"struct","fields":[{"name":"k","type":"integer","nullable":true,"metadata":{}}]}'
LOAD = """
import pickle, sys
assert not [name for name in sys.modules if name.startswith("ebla")]
loaded = pickle.loads(open(sys.argv[1], "rb").read())
"""


def pickled(one: object) -> bytes:
    """As Spark does it."""
    data: bytes = cloudpickle.dumps(one)  # type: ignore[no-untyped-call]  # Spark's copy has no types
    return data


def run(python: Path, code: str, data: bytes, folder: Path) -> subprocess.CompletedProcess[str]:
    parcel = folder / "parcel"
    parcel.write_bytes(data)
    (folder / "temporary").mkdir(exist_ok=True)
    environment = {"PATH": os.environ["PATH"], "TMPDIR": str(folder / "temporary")}
    return subprocess.run(
        [str(python), "-c", LOAD + code, str(parcel)], capture_output=True, text=True, env=environment, check=False
    )


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python that has what Spark needs, and nothing else of ours."""
    without = (
        "ebla",
        "_ebla",
        "__editable__",
        "rocksdict",
        "cassandra",
        "scylla",
        "lz4",
        "typer",
        "rich",
        "cryptography",
    )
    return bare_python(tmp_path_factory.mktemp("stranger"), without)


def test_a_reader_is_made_anew_by_code_that_came_along(stranger: Path, tmp_path: Path) -> None:
    data = pickled((SplitReader(SHOWN), DefaultSource({"table": "ks.t", "password": "secret"})))
    code = """
import ebla, importlib.metadata
from pyspark.sql.datasource import DataSource, InputPartition
reader, source = loaded
print(ebla.__path__[0])
print(importlib.metadata.version("ebla"))
print(list(reader.read(InputPartition(None))), source.name(), isinstance(source, DataSource), source.options["table"])
import ebla.source.read.reader, ebla.source.write.commit, ebla.source.write.task_writer, ebla.source.write.writer
import ebla.source.write.stream_writer
import ebla.source.write.driver_rows, ebla.source.data_source, ebla.source.read.split_reader
"""
    for _ in range(2):
        ended = run(stranger, code, data, tmp_path)
        assert ended.returncode == 0, ended.stderr
        place, release, said = ended.stdout.splitlines()
        assert place.startswith(str(tmp_path / "temporary"))
        assert release
        assert said == "[] ebla True ks.t"
    (unpacked,) = (path for path in (tmp_path / "temporary").rglob("ebla") if path.is_dir())
    assert str(unpacked) == place, "it is unpacked once"


def test_a_package_that_is_missing_is_named_with_what_to_do(tmp_path: Path) -> None:
    poor = bare_python(tmp_path / "poor", ("ebla", "__editable__", "msgspec"))
    ended = run(poor, "", pickled(SplitReader(SHOWN)), tmp_path)
    assert ended.returncode != 0
    last = ended.stderr.strip().splitlines()[-1]
    assert last.startswith(f"ImportError: the Python of this Spark executor, {last.split(', ')[1]}, lacks msgspec")
    assert "pip install msgspec" in last
    assert "ebla spark-env" in last


def test_where_it_is_installed_that_is_used() -> None:
    reader = cloudpickle.loads(pickled(SplitReader(SHOWN)))
    assert type(reader) is SplitReader
    assert list(reader.read(InputPartition(None))) == []


def test_no_password_goes_to_executors(monkeypatch: pytest.MonkeyPatch) -> None:
    source = DefaultSource({"table": "ks.t", "password": "secret"})
    assert b"secret" in pickled(source), "Spark hands it on to the process that plans"
    monkeypatch.setattr("ebla.source.data_source.make_reader", lambda _options, _schema: None)
    source.reader(schema=None)  # type: ignore[arg-type]  # of no matter here
    assert b"secret" not in pickled(source)


def test_the_code_goes_along_once_however_many_are_pickled() -> None:
    one, both = SplitReader(SHOWN), [SplitReader(SHOWN), DefaultSource({"table": "ks.t"})]
    assert len(pickled(both)) < len(pickled(one)) + 10_000


def test_the_zip_is_small_enough_for_each_task() -> None:
    assert len(code_shipping._archive()) < 1_000_000


def test_a_shared_folder_that_others_could_have_made_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    shared, elsewhere = tmp_path / f"ebla-shipped-{os.getuid()}", tmp_path / "elsewhere"
    assert code_shipping._private_root()() == str(shared)
    assert stat.S_IMODE(shared.stat().st_mode) == 0o700
    shared.chmod(0o770)
    assert code_shipping._private_root()() is None
    shared.rmdir()
    elsewhere.mkdir(mode=0o700)
    shared.symlink_to(elsewhere)
    assert code_shipping._private_root()() is None
    shared.unlink()
    shared.write_text("")
    assert code_shipping._private_root()() is None
