"""Which machine this is, for the short cut of transfers: whoever is on the same one may try to open a folder.

What stands in `Source.machine` and `Target.machine` is this, a dot, and a word of chance; a file of that whole name
stands in each folder that is offered.
"""

import socket
import sys
import uuid
from pathlib import Path

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def machine_id() -> str:
    """The same for all processes of one machine until it starts again, and in all its containers."""
    if sys.platform == "linux" and _BOOT_ID.exists():
        return _BOOT_ID.read_text(encoding="ascii").strip()
    return str(uuid.uuid5(uuid.NAMESPACE_DNS, f"{socket.gethostname()} {uuid.getnode()}"))
