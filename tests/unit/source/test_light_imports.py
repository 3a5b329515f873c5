"""What Spark's driver does not load to plan or commit a write: each of these takes longer than either does."""

import subprocess
import sys

import pytest

HEAVY = (
    "numpy",
    "pandas",
    "pyarrow",
    "ebla.cql.parse.statements",
    "ebla.source.write.task_writer",
    "ebla.source.write.driver_rows",
)


@pytest.mark.parametrize("module", ["data_source", "write.writer", "write.stream_writer"])
def test_a_plan_loads_nothing_that_rows_are_made_with(module: str) -> None:
    code = f"import sys, ebla.source.{module}; print([name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.strip() == "[]"
