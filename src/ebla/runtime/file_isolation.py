"""Whether a file can still be written by a process that has it open, by read leases of Linux."""

import errno
import fcntl
import os
import signal
import sys

_LEASES = sys.platform == "linux"


class FileIsolation:
    """`bulk.staging.Isolation`. Its calls block for a moment; call them off the loop."""

    def inode(self, path: str) -> int:
        return os.lstat(path).st_ino

    def size_bytes(self, path: str) -> int:
        return os.lstat(path).st_size

    def has_no_writer(self, path: str) -> bool:
        """No process has the file open for writing, under any name. False also where the kernel cannot say."""
        if not _LEASES:
            return False
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError as failure:
            if failure.errno == errno.ELOOP:
                return False  # a symbolic link
            raise
        try:
            # A writer that opens the file in between breaks the lease, and the kernel sends a signal. The default,
            # SIGIO, kills a process without a handler; SIGURG is ignored by default.
            fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGURG)
            fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_RDLCK)
            fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
        except OSError:
            # EAGAIN: there is a writer. Others: a file system without leases, or a file of another user.
            return False
        finally:
            os.close(descriptor)
        return True
