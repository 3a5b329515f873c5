"""Where buffers come from, in a process of its own: it holds until its end."""

import subprocess
import sys

CODE = """
import pyarrow as pa
from ebla.storage.layers.malloc_buffers import use_malloc_for_arrow
use_malloc_for_arrow()
use_malloc_for_arrow()
print(pa.default_memory_pool().backend_name, pa.array(range(1000)).nbytes)
"""


def test_arrow_takes_its_buffers_from_the_c_library() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.split() == ["system", "8000"]
