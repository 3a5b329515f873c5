"""The logs survive a kill before, after and (for writes) half-way through every file-system call, on the real disk.

A killed process keeps its page cache; power loss is tested on the simulated disk
(`tests/properties/test_journal.py`).
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("journal_crash.py")
WORKLOADS = ("journal", "raft")
LIMIT_S = 150


class Run:
    """Runs the script on one workload. Output goes to files: no one reads a pipe while waiting for the other."""

    def __init__(self, folder: Path, workload: str) -> None:
        self.out, self.err = folder / "out", folder / "err"
        data = folder / "data"
        data.mkdir()
        with self.out.open("wb") as out, self.err.open("wb") as err:
            self.process = subprocess.Popen([sys.executable, str(SCRIPT), str(data), workload], stdout=out, stderr=err)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Run]]:
    """Runs all at once: each mostly waits for its syncs."""
    started = {workload: Run(tmp_path_factory.mktemp(workload), workload) for workload in WORKLOADS}
    yield started
    for run in started.values():
        run.process.kill()
        run.process.wait()


@pytest.mark.parametrize(("workload", "kills_min"), [("journal", 150), ("raft", 150)])
def test_nothing_acknowledged_is_lost_by_a_kill_at_any_call(
    runs: dict[str, Run], workload: str, kills_min: int
) -> None:
    run = runs[workload]
    assert run.process.wait(LIMIT_S) == 0, run.err.read_text()
    kills = [json.loads(line) for line in run.out.read_text().splitlines()]
    assert [kill for kill in kills if kill["wrong"]] == [], run.err.read_text()[-4000:]
    assert len(kills) >= kills_min
    for call in ("create", "write", "truncate", "preallocate", "sync", "close", "rename", "unlink", "sync_folder"):
        assert any(f": {call} " in kill["kill"] for kill in kills), f"no {call} was among the kills"
