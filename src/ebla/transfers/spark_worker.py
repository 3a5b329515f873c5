"""What every task does first in a Python worker of Spark.

It uses real time and randomness: no simulation runs it, the simulated engine has its own tasks.
"""

import gc
import time
import uuid
from functools import cache

from pyspark import TaskContext

from ebla.model.identity import AttemptId

PAUSE_FIRST_S = 0.5


def new_attempt_id() -> AttemptId:
    """From the kernel: a worker is forked, and would share the state of a generator with its siblings."""
    return AttemptId(uuid.uuid4())


def prepare_worker() -> None:
    """Call it first in each task."""
    _freeze_loaded_objects()
    _pause_before_retry()


@cache
def _freeze_loaded_objects() -> None:
    """After each task a worker runs the garbage collector, which takes 30 ms to visit the loaded modules. It does not
    visit frozen objects."""
    gc.freeze()


def _pause_before_retry() -> None:
    """Spark retries a task at once; without a pause, all attempts would fail while a node restarts."""
    context = TaskContext.get()
    repeats = context.attemptNumber() if context is not None else 0
    if repeats:
        time.sleep(PAUSE_FIRST_S * 2 ** (repeats - 1))
