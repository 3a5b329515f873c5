"""Every call by which RocksDB and we change a layer's files: the process killed before it, and started again."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cluster.kill_at_calls import IS_SUPPORTED

SCRIPT = Path(__file__).with_name("layer_crash.py")
ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(not IS_SUPPORTED, reason="system calls are traced on Linux on x86-64")
def test_nothing_flushed_is_lost_by_a_kill_before_any_call(tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, str(SCRIPT), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert run.returncode == 0, run.stderr
    kills = [json.loads(line) for line in run.stdout.splitlines()]
    assert [kill for kill in kills if kill["wrong"]] == [], run.stderr[-4000:]
    assert len(kills) >= 100
    for call in ("create", "write", "fdatasync", "fsync", "rename", "link", "unlink", "mkdir", "rmdir"):
        assert any(kill["kill"].startswith(f"{call} ") for kill in kills), f"no {call} was among the kills"
