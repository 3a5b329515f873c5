"""Freed memory is returned or kept, as `malloc.py` says."""

import subprocess
import sys
from pathlib import Path

import pytest
from tests.async_tests import real_time, runs_in
from tests.unit.storage.rigs import Rig, at, rows

from ebla.storage.layers.malloc import CLOSED_BETWEEN, MallocTrimmer

AT_US = 1_700_000_000_000_000


def test_it_is_given_back_after_so_many_and_not_after_each() -> None:
    freed = MallocTrimmer()
    due = [freed.is_due() for _ in range(3 * CLOSED_BETWEEN)]
    assert [number for number, one in enumerate(due, 1) if one] == [CLOSED_BETWEEN * turn for turn in (1, 2, 3)]
    freed.trim()


@runs_in(real_time)
async def test_layers_that_were_open_count_when_they_are_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given_back: list[MallocTrimmer] = []
    monkeypatch.setattr(MallocTrimmer, "trim", lambda freed: given_back.append(freed))
    rig = Rig("rocks", tmp_path)
    for number in range(CLOSED_BETWEEN):
        without_files = await rig.engine.open(rig.path(f"none-{number}"), writable=True)
        await without_files.close()
        layer = await rig.engine.open(rig.path(str(number)), writable=True)
        layer.put_batch(rows([1]), at(AT_US))
        assert not given_back
        await layer.discard()
    rig.close()
    assert len(given_back) == 1


CODE = """
import pyarrow as pa
from ebla.storage.layers.malloc import use_malloc_for_arrow
use_malloc_for_arrow()
use_malloc_for_arrow()
print(pa.default_memory_pool().backend_name, pa.array(range(1000)).nbytes)
"""


def test_arrow_takes_its_buffers_from_the_c_library() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.split() == ["system", "8000"]
