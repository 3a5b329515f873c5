"""What each task does first, in a Python worker of Spark's.

Nothing is given to it there, and no simulation runs it: the twin of the engine has tasks of its own.
"""

import gc
import time
import uuid
from functools import cache

from pyspark import TaskContext

from ebla.model.identity import AttemptId

PAUSE_FIRST_S = 0.5


def new_attempt_id() -> AttemptId:
    """A worker forks from a parent that has state of its own; this comes from the kernel."""
    return AttemptId(uuid.uuid4())


def prepare_worker() -> None:
    """Before anything else in a task."""
    _keep_what_is_loaded()
    _pause_before_retry()


@cache
def _keep_what_is_loaded() -> None:
    """After each task a worker collects all garbage, and takes 30 ms to walk through the modules that are loaded. Once
    frozen they are left out."""
    gc.freeze()


def _pause_before_retry() -> None:
    """Spark repeats a task at once, and a node that is just starting again would see all tries within a second."""
    context = TaskContext.get()
    repeats = context.attemptNumber() if context is not None else 0
    if repeats:
        time.sleep(PAUSE_FIRST_S * 2 ** (repeats - 1))
