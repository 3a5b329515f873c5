import uuid

import pytest
from tests.unit.journal.on_disks import Machine

from ebla.control.leadership.lease_file import LeaseFile
from ebla.leadership.lease_agent import DAMAGED_FILE
from ebla.leadership.messages import LeaseFileContent, LeaseGrant, LeaseId, SavedLease
from ebla.model.errors import DiskFull
from ebla.model.identity import HistoryId, HostId
from ebla.sim.disk import DiskFault, ProcessDisk

PATH = "/data/lease"
GRANT = LeaseGrant(HostId(uuid.UUID(int=1)), LeaseId(uuid.UUID(int=2)), 3)
LEASE = SavedLease(grant=GRANT, history=HistoryId(uuid.UUID(int=4)), term=5, period_ms=15_000, left_ms=9_000)


def file_on(disk: ProcessDisk, events: list[str] | None = None) -> LeaseFile:
    return LeaseFile(disk, PATH, lambda event, _details: (events if events is not None else []).append(event))


def load(machine: Machine, events: list[str] | None = None) -> LeaseFileContent | None:
    return machine.run(lambda disk: file_on(disk, events).load())


def test_without_a_file_there_is_no_lease() -> None:
    assert load(Machine(1)) is None


def test_a_lease_survives_a_power_loss() -> None:
    machine = Machine(1)
    machine.run(lambda disk: file_on(disk).save(LEASE))
    machine.lose_power()
    assert load(machine) == LEASE


def test_a_damaged_file_is_set_aside_and_blocks_across_restarts() -> None:
    machine, events = Machine(1), list[str]()
    machine.run(lambda disk: file_on(disk).save(LEASE))
    machine.disk.rot("/lease")
    assert load(machine, events) == DAMAGED_FILE
    assert events == ["lease.damaged"]
    machine.lose_power()
    assert load(machine, events) == DAMAGED_FILE
    assert events == ["lease.damaged"]

    async def has_copy(disk: ProcessDisk) -> bool:
        return disk.exists(f"{PATH}.quarantine")

    assert machine.run(has_copy)


def test_a_file_that_cannot_be_written_is_an_error_that_names_it() -> None:
    machine = Machine(1)
    machine.run(lambda disk: file_on(disk).save(LEASE))
    with machine.disk.inject(DiskFault(fail_sync=1.0)), pytest.raises(DiskFull, match=PATH):
        machine.run(lambda disk: file_on(disk).save(DAMAGED_FILE))
    assert load(machine) == LEASE
