"""A shard's store survives a kill before every call that changes its files, made by RocksDB or by Ebla.

A killed process keeps its page cache; power loss is tested on the simulated disk.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cluster.kill_at_calls import IS_SUPPORTED

HERE = Path(__file__).parent
IN_MEMORY = Path("/dev/shm")

pytestmark = pytest.mark.skipif(not IS_SUPPORTED, reason="system calls are traced on Linux on x86-64")


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[str]:
    """In memory if possible: thousands of syncs take minutes, and a kill loses neither."""
    if not os.access(IN_MEMORY, os.W_OK):
        yield str(tmp_path)
        return
    with tempfile.TemporaryDirectory(prefix="ebla-crash-", dir=IN_MEMORY) as made:
        yield made


def kills_of(script: str, *arguments: str) -> list[str]:
    """Returns the calls killed before; fails if anything was wrong afterwards."""
    run = subprocess.run(
        [sys.executable, str(HERE / script), *arguments],
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
        env={**os.environ, "PYTHONPATH": str(HERE.parents[1])},
    )
    assert run.returncode == 0, run.stderr
    kills = [json.loads(line) for line in run.stdout.splitlines()]
    assert [kill for kill in kills if kill["wrong"]] == [], run.stderr[-4000:]
    return [kill["kill"] for kill in kills]


def test_layers(folder: str) -> None:
    kills = kills_of("layer_crash.py", folder)
    assert len(kills) >= 100
    for call in ("create", "write", "fdatasync", "fsync", "rename", "link", "unlink", "mkdir", "rmdir"):
        assert any(kill.startswith(f"{call} ") for kill in kills), f"no {call} was among the kills"


@pytest.mark.parametrize(
    ("operation", "kills_min", "last"),
    [
        ("open", 30, "fsync"),
        ("write", 6, "fdatasync"),
        ("create", 6, "fsync"),
        ("flush", 6, "fsync"),
        ("seal", 12, "fsync"),
        ("adopt", 25, "fsync"),
        ("checkpoint", 40, "fsync"),
        ("compact", 80, "rmdir"),
        ("drop", 25, "rmdir"),
        ("alter", 6, "fsync"),
        ("close", 10, "fsync"),
    ],
)
def test_operations_of_a_store(folder: str, operation: str, kills_min: int, last: str) -> None:
    kills = kills_of("store_crash.py", folder, operation)
    assert len(kills) >= kills_min
    assert any(kill.startswith(f"{last} ") for kill in kills), f"no {last} was among the kills"


def test_the_first_start_on_a_folder_of_the_previous_release(folder: str) -> None:
    kills = kills_of("adoption_crash.py", folder)
    assert len(kills) >= 60
    assert any(kill.startswith("rename ") and kill.endswith("/FORMAT") for kill in kills)
