"""The id of this machine, for the link path of transfers: a process on the same machine may try to open a folder.

`TransferSource.machine` and `TransferTarget.machine` are this id, a dot, and a random word. A file of that whole name
is in each folder that is offered.
"""

import socket
import sys
import uuid
from pathlib import Path

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def machine_id() -> str:
    """The same for all processes of one machine until it reboots, also in its containers."""
    if sys.platform == "linux" and _BOOT_ID.exists():
        return _BOOT_ID.read_text(encoding="ascii").strip()
    return str(uuid.uuid5(uuid.NAMESPACE_DNS, f"{socket.gethostname()} {uuid.getnode()}"))
