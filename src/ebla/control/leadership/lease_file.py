"""The file `lease`: what a node promised, so that a restart does not forget it."""

import msgspec

from ebla.journal.checked_file import parent_folder, read_checked_file, replace_file
from ebla.leadership.lease_agent import DAMAGED_FILE
from ebla.leadership.messages import LeaseFileContent
from ebla.model.errors import Corruption, DiskFull
from ebla.observe.event_reporter import EventReporter
from ebla.ports.disk import Disk

QUARANTINE_SUFFIX = ".quarantine"

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[LeaseFileContent] = msgspec.msgpack.Decoder(LeaseFileContent)


class LeaseFile:
    """One write at a time: the caller serialises them."""

    def __init__(self, disk: Disk, path: str, report: EventReporter) -> None:
        self._disk = disk
        self._path = path
        self._report = report

    async def load(self) -> LeaseFileContent | None:
        """None: there is no file. A damaged one is set aside, and the block that replaces it is durable on return."""
        try:
            return _decoder.decode(await read_checked_file(self._disk, self._path))
        except FileNotFoundError:
            return None
        except (Corruption, msgspec.MsgspecError) as error:
            damage = str(error)
        quarantine = self._path + QUARANTINE_SUFFIX
        self._report("lease.damaged", {"file": self._path, "cause": damage, "kept_as": quarantine})
        # A copy, and not a rename: a crash between a rename and the next write would leave no file, which means that
        # nothing was promised.
        if self._disk.exists(quarantine):
            self._disk.unlink(quarantine)
        self._disk.link(self._path, quarantine)
        await self._disk.sync_folder(parent_folder(self._path))
        await self.save(DAMAGED_FILE)
        return DAMAGED_FILE

    async def save(self, content: LeaseFileContent) -> None:
        """Durable on return. Raises `DiskFull` if it cannot be written."""
        try:
            await replace_file(self._disk, self._path, _encoder.encode(content))
        except OSError as error:
            raise DiskFull(f"the lease file {self._path} cannot be written: {error}") from error
