"""Whether the workers of a bulk process are busy."""

import psutil

READY = "ebla.bulk.workers.worker_process"
"""The fork server of the workers. It stays while there is no work; its forks do the work."""


def is_busy(bulk: psutil.Process) -> bool:
    return any(_works(child) for child in bulk.children())


def _works(child: psutil.Process) -> bool:
    try:
        return READY not in child.cmdline() or bool(child.children())
    except psutil.NoSuchProcess:
        return False
