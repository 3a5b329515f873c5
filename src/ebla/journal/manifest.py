"""Which segments a log has. The commit point of every rotation and drop.

Without it, a segment that is missing at either end could not be distinguished from one that was never created or was
dropped.
"""

import msgspec

from ebla.journal.checked_file import read_checked_file, replace_file
from ebla.journal.frames import LOG_FORMAT
from ebla.model.advice import replace_node_advice
from ebla.model.errors import Corruption, Refused
from ebla.ports.disk import Disk

JOURNAL_MANIFEST_NAME = "manifest"
SEGMENT_SUFFIX = ".log"


class JournalManifest(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    format: int
    log_id: int
    segments: tuple[int, ...]
    """The first sequence of each, ascending. All but the last are complete."""
    acknowledged: int
    """A sequence known to be durable when this was written; the log is never shorter."""


def manifest_path(folder: str) -> str:
    return f"{folder}/{JOURNAL_MANIFEST_NAME}"


def segment_path(folder: str, first_sequence: int) -> str:
    return f"{folder}/{first_sequence:020d}{SEGMENT_SUFFIX}"


def segment_sequence(name: str) -> int | None:
    """The first sequence in a segment's file name; None for other files."""
    number = name.removesuffix(SEGMENT_SUFFIX)
    return int(number) if number != name and number.isdecimal() else None


def segments_needed(segments: tuple[int, ...], sequence: int) -> tuple[int, ...]:
    """Those with `sequence` or later ones. The newest always stays: it is being written."""
    unneeded = sum(1 for successor in segments[1:] if successor <= sequence)
    return segments[unneeded:]


async def save_manifest(disk: Disk, folder: str, manifest: JournalManifest) -> None:
    await replace_file(disk, manifest_path(folder), msgspec.msgpack.encode(manifest))


async def load_manifest(disk: Disk, folder: str) -> JournalManifest | None:
    """None if there is none. Raises `Corruption`, or `Refused` for a newer format."""
    path = manifest_path(folder)
    try:
        data = await read_checked_file(disk, path)
    except FileNotFoundError:
        return None
    try:
        manifest = msgspec.msgpack.decode(data, type=JournalManifest)
    except msgspec.DecodeError as failure:
        raise Corruption(
            f"{path} has a valid checksum but no manifest in it ({failure})",
            advice=f"keep a copy of the folder, then {replace_node_advice()}",
        ) from failure
    if manifest.format > LOG_FORMAT:
        raise Refused(
            f"{path} has log format {manifest.format}, this program knows formats up to {LOG_FORMAT}",
            advice="run the version that wrote it, or a newer one",
        )
    return manifest
