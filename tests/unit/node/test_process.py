"""What the processes of a node have in common."""

import subprocess
import sys

FROZEN = """
import gc
from ebla.node.process import run_process

async def work():
    return gc.get_freeze_count(), len(gc.get_objects())

frozen, others = run_process(work())
assert frozen > 10 * others, (frozen, others)
"""


def test_a_full_collection_does_not_look_through_what_was_imported() -> None:
    """In a separate process: frozen objects stay frozen."""
    subprocess.run([sys.executable, "-c", FROZEN], check=True, timeout=60)
