"""File isolation on a simulated disk; the real one is `runtime/file_isolation.py`."""

from ebla.sim.disk import ProcessDisk


class SimIsolation:
    """`bulk.staging.Isolation`."""

    def __init__(self, disk: ProcessDisk) -> None:
        self._disk = disk

    def inode(self, path: str) -> int:
        return self._disk.inode(path)

    def size_bytes(self, path: str) -> int:
        file = self._disk.open(path)
        try:
            return file.size()
        finally:
            file.close()

    def has_no_writer(self, path: str) -> bool:
        return not self._disk.is_open(path)
