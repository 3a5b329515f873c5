"""What processes do not carry with them: each of these costs tens of megabytes and a good part of a start."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("module", "heavy"),
    [("ebla.wire.verbs", ("pyarrow", "pandas", "pyspark")), ("ebla.node.shard", ("pyspark", "pyarrow.flight"))],
)
def test_a_process_does_not_import_what_it_never_uses(module: str, heavy: tuple[str, ...]) -> None:
    code = f"import sys, {module}; print([name for name in {heavy!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.strip() == "[]"
