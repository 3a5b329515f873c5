"""The operating system's limits on this process."""

import resource

from ebla.model.errors import Refused

FILES_PER_LAYER = 24
"""A writable layer has six files of its own and one for each of its SST files; with sixteen of those a live layer is
due to be sealed."""
FILES_FOR_LAYERS = 0.75
"""The rest is for connections, the commit log, compactions and checkpoints."""
LAYERS_OPEN_MAX = 4096


def layers_open_max(open_files: int) -> int:
    """How many layers a shard may have open. The limit on files is per process, so the shards of a node do not share
    it. They do share memory, which limits the layers of one as well."""
    return max(1, min(LAYERS_OPEN_MAX, int(open_files * FILES_FOR_LAYERS) // FILES_PER_LAYER))


def raise_open_files(needed_min: int) -> int:
    """Raises the soft limit on open files to the hard one, and returns it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY:
        hard = max(soft, 1 << 20)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if hard < needed_min:
        raise Refused(
            f"this process may open {hard} files and needs {needed_min}",
            advice="raise the hard limit (ulimit -Hn), or lower limits.open_files_min",
        )
    return hard
