"""Whether a file can still be written to by somebody who has it open: read leases of Linux."""

import errno
import fcntl
import os
import signal
import sys

_LEASES = sys.platform == "linux"


class FileIsolation:
    """`bulk.staging.Isolation`. Its calls block for a moment; they are made off the loop."""

    def inode(self, path: str) -> int:
        return os.lstat(path).st_ino

    def size_bytes(self, path: str) -> int:
        return os.lstat(path).st_size

    def has_no_writer(self, path: str) -> bool:
        """Nobody has the file open for writing, under whichever name. Where the kernel cannot tell: False."""
        if not _LEASES:
            return False
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError as failure:
            if failure.errno == errno.ELOOP:
                return False  # no file of its own
            raise
        try:
            # A writer that opens it in between breaks the lease, and is told of by a signal. SIGIO, which it would be,
            # ends a process that has not asked for it; this one is ignored by default.
            fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGURG)
            fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_RDLCK)
            fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
        except OSError:
            # EAGAIN: somebody writes. Others: a file system without leases, or a file of another user.
            return False
        finally:
            os.close(descriptor)
        return True
