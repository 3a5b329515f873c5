"""Finds the staged rows of an attempt, to copy them to another replica.

Before the seal each attempt has its own file. The seal merges those that count into one: from then on the name of any
of them stands for all, and the answer says so. While they are being merged nothing can be read.
"""

from dataclasses import dataclass

from ebla.bulk.staging import RUN_SUFFIX, SEALED_PREFIX, StagedTransfer
from ebla.bulk.staging_state import TransferPhase
from ebla.model.errors import InvalidRequest, Overloaded, Refused
from ebla.model.identity import AttemptId
from ebla.model.transfers import ROWS_NAME, ScanStack, StagingKind
from ebla.ports.disk import Disk


@dataclass(frozen=True, slots=True)
class StagedRows:
    path: str = ""
    """Of a file of records; empty: the rows are in a layer, or there are none."""
    layer: ScanStack | None = None
    is_merged: bool = False
    """The rows are those of all attempts that count, not of one."""


def find_staged_rows(disk: Disk, staged: StagedTransfer, attempt: AttemptId) -> StagedRows:
    """Raises `Overloaded` while it is being sealed, `Refused` where the attempt has staged nothing."""
    if staged.target.kind is not StagingKind.ROWS:
        raise InvalidRequest(f"transfer {staged.transfer} moves files; read them from their source")
    match staged.state.phase:
        case TransferPhase.OPEN:
            return StagedRows(_run_of(disk, staged, attempt))
        case TransferPhase.SEALING:
            raise Overloaded(
                f"what was staged of transfer {staged.transfer} is being merged", advice="try again when it is sealed"
            )
        case TransferPhase.SEALED:
            return _sealed_rows(staged, attempt)
        case TransferPhase.RELEASED:
            raise Refused(f"transfer {staged.transfer} was released, and nothing is left of it")


def _run_of(disk: Disk, staged: StagedTransfer, attempt: AttemptId) -> str:
    """Also where a failed seal has moved it."""
    path = f"{staged.attempt_folder(attempt)}/{ROWS_NAME}"
    if disk.exists(path):
        return path
    for name in disk.list_folder(staged.folder):
        taken = f"{staged.folder}/{name}/{attempt.hex}{RUN_SUFFIX}"
        if name.startswith(SEALED_PREFIX) and disk.exists(taken):
            return taken
    raise _none_of(staged, attempt)


def _sealed_rows(staged: StagedTransfer, attempt: AttemptId) -> StagedRows:
    sealed = staged.sealed
    assert sealed is not None
    if attempt not in sealed.attempts:
        raise _none_of(staged, attempt)
    if sealed.rows_file:
        return StagedRows(f"{staged.folder}/{sealed.rows_file}", is_merged=True)
    layers = tuple((f"{staged.folder}/{one.folder}", one.range) for one in sealed.layers)
    return StagedRows(layer=ScanStack(staged.target.range, layers) if layers else None, is_merged=True)


def _none_of(staged: StagedTransfer, attempt: AttemptId) -> Refused:
    return Refused(
        f"attempt {attempt} at transfer {staged.transfer} has no rows here",
        advice="it has staged nothing, or the seal named other attempts",
    )
