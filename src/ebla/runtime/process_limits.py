"""What the operating system lets this process have."""

import resource

from ebla.model.errors import Refused


def raise_open_files(needed_min: int) -> int:
    """Raises the limit on open files to the hard one and returns it."""
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
