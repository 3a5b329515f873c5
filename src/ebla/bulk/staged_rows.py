"""What was staged of rows, for whoever has to bring it to a further replica: where it stands at the moment.

Before the seal each attempt has its own file. By the seal those that count become one: from then on any of their names
stands for all of them, and whoever asks is told so. While they are being merged there is nothing to be had.
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
    """Of a file of records; empty: they are in a layer, or there are none."""
    layer: ScanStack | None = None
    is_merged: bool = False
    """They are those of all attempts that count, not of one."""


def find_staged_rows(disk: Disk, staged: StagedTransfer, attempt: AttemptId) -> StagedRows:
    """Raises `Overloaded` while it is being sealed, `Refused` where there is nothing of this attempt."""
    if staged.target.kind is not StagingKind.ROWS:
        raise InvalidRequest(f"transfer {staged.transfer} is of files; their source has them")
    match staged.state.phase:
        case TransferPhase.OPEN:
            return StagedRows(_run_of(disk, staged, attempt))
        case TransferPhase.SEALING:
            raise Overloaded(
                f"what was staged of transfer {staged.transfer} is being merged", advice="ask again when it is sealed"
            )
        case TransferPhase.SEALED:
            return _sealed_rows(staged, attempt)
        case TransferPhase.RELEASED:
            raise Refused(f"transfer {staged.transfer} was released, and nothing is left of it")


def _run_of(disk: Disk, staged: StagedTransfer, attempt: AttemptId) -> str:
    """Also where a seal that failed has taken it over."""
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
        f"of attempt {attempt} at transfer {staged.transfer} nothing is here",
        advice="it has brought nothing, or others were named by the seal",
    )
