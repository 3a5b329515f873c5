"""Every file-system call of the logs killed before, after and (writes) half-way, on the real disk, then restarted.

A killed process keeps its page cache; what power loss does besides is tried on the simulated disk
(`tests/properties/test_journal.py`).
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("journal_crash.py")


@pytest.mark.parametrize(("workload", "kills_min"), [("journal", 150), ("raft", 150)])
def test_nothing_acknowledged_is_lost_by_a_kill_at_any_call(tmp_path: Path, workload: str, kills_min: int) -> None:
    run = subprocess.run(
        [sys.executable, str(SCRIPT), str(tmp_path), workload], capture_output=True, text=True, timeout=150, check=False
    )
    assert run.returncode == 0, run.stderr
    kills = [json.loads(line) for line in run.stdout.splitlines()]
    assert [kill for kill in kills if kill["wrong"]] == [], run.stderr[-4000:]
    assert len(kills) >= kills_min
    for call in ("create", "write", "truncate", "preallocate", "sync", "close", "rename", "unlink", "sync_folder"):
        assert any(f": {call} " in kill["kill"] for kill in kills), f"no {call} was among the kills"
