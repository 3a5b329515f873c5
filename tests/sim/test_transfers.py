"""Transfers on whole nodes in simulation at a few seeds, and the violations that its checkers find."""

import uuid
from collections.abc import Callable

import pytest

from ebla.model.identity import (
    Address,
    CheckpointId,
    HostId,
    Replica,
    SessionId,
    ShardNumber,
    TableId,
    TransferId,
)
from ebla.model.token import WHOLE_RING
from ebla.model.transfers import (
    CheckpointFile,
    CheckpointLayer,
    CheckpointPart,
    FileMove,
    StagingKind,
    TransferSource,
    TransferTarget,
)
from ebla.sim.checkers.transfers import AdoptedLayers, TransfersLedger, find_leftovers
from ebla.sim.disk import ProcessDisk
from ebla.sim.scenario import find_scenario, run_scenario
from ebla.sim.world import World
from ebla.storage.manifest import Incarnation, LayerEntry, LayerId

HOST = HostId(uuid.UUID(int=1))
OWN = Replica(HOST, ShardNumber(0))
SESSION, TRANSFER = SessionId(uuid.UUID(int=2)), TransferId(uuid.UUID(int=3))
STACK = Incarnation(7)


@pytest.mark.parametrize("seed", range(1, 4))
def test_nothing_an_engine_does_harms_while_everything_fails(seed: int) -> None:
    """Under every fault: INV-XFER-1, INV-XFER-2, INV-XFER-3, INV-XFER-4, INV-XFER-5, and those of rows."""
    outcome = run_scenario(find_scenario("transfers"), seed, 15.0)
    assert outcome.failure is None, f"{outcome.replay}\n{outcome.report}"


def test_the_same_seed_gives_the_same_run() -> None:
    scenario = find_scenario("transfers")
    assert run_scenario(scenario, 4, 4.0).trace == run_scenario(scenario, 4, 4.0).trace


# -- the ledger


def _with_ledger(story: Callable[[TransfersLedger, ProcessDisk, list[str]], None]) -> None:
    async def scenario(world: World) -> None:
        failures: list[str] = []
        story(TransfersLedger(fail=failures.append, now=world.now), world.disk_of(world.machine("one")), failures)

    World(1, 60.0).run(scenario)


def _written(disk: ProcessDisk, path: str, data: bytes) -> None:
    disk.make_folder(path.rpartition("/")[0])
    file = disk.create(path)
    file.append(data)
    file.close()


def _sent(ledger: TransfersLedger, disk: ProcessDisk, *layers: bytes) -> None:
    for place, data in enumerate(layers):
        _written(disk, f"/data/from/{place}/f", data)
    listed = tuple(
        CheckpointLayer(folder=str(place), range=WHOLE_RING, files=(CheckpointFile("f", len(data)),))
        for place, data in enumerate(layers)
    )
    part = CheckpointPart(shard=ShardNumber(0), range=WHOLE_RING, layers=listed)
    address = Address("10.0.0.1", 7001)
    checkpoint, table = CheckpointId(uuid.UUID(int=4)), TableId(uuid.UUID(int=5))
    source = TransferSource(host=HOST, checkpoint=checkpoint, table=table, parts=(part,), ticket=b"", flight=address)
    target = TransferTarget(
        host=HOST,
        shard=ShardNumber(0),
        session=SESSION,
        transfer=TRANSFER,
        kind=StagingKind.FILES,
        range=WHOLE_RING,
        ticket=b"",
        flight=address,
    )
    ledger.sends_files(FileMove(source, 0, target), "/data/from", disk)


def _appeared(disk: ProcessDisk, *layers: bytes, first: int = 0) -> AdoptedLayers:
    placed = []
    for number, data in enumerate(layers, start=first):
        _written(disk, f"/data/to/{number}/f", data)
        placed.append((LayerEntry(id=LayerId(number), range=WHOLE_RING), f"/data/to/{number}"))
    return AdoptedLayers(own=OWN, incarnation=STACK, session=SESSION, transfer=TRANSFER, layers=placed)


def test_what_arrives_whole_is_well_and_stays_as_it_is() -> None:
    def story(ledger: TransfersLedger, disk: ProcessDisk, failures: list[str]) -> None:
        _sent(ledger, disk, b"old", b"new")
        ledger.effect(OWN, SESSION, 0.0)
        ledger.appeared(_appeared(disk, b"old", b"new"), disk)
        ledger.check_files()
        assert not failures
        disk.open("/data/to/1/f").write(0, b"N")
        ledger.check_files()
        assert [text[:10] for text in failures] == ["INV-XFER-4"]

    _with_ledger(story)


@pytest.mark.parametrize("layers", [(b"old",), (b"new", b"old"), (b"old", b"ne?"), (b"old", b"new", b"more")])
def test_what_arrives_in_part_or_changed_is_told(layers: tuple[bytes, ...]) -> None:
    def story(ledger: TransfersLedger, disk: ProcessDisk, failures: list[str]) -> None:
        _sent(ledger, disk, b"old", b"new")
        ledger.appeared(_appeared(disk, *layers), disk)
        assert [text[:10] for text in failures] == ["INV-XFER-2"]

    _with_ledger(story)


def test_what_nobody_sent_and_what_comes_twice_is_told() -> None:
    def story(ledger: TransfersLedger, disk: ProcessDisk, failures: list[str]) -> None:
        ledger.appeared(_appeared(disk, b"old"), disk)
        ledger.appeared(_appeared(disk, b"old", first=1), disk)
        assert [text[:10] for text in failures] == ["INV-XFER-2", "INV-XFER-3"]

    _with_ledger(story)


def test_rows_arrive_as_they_were_read() -> None:
    def story(ledger: TransfersLedger, disk: ProcessDisk, failures: list[str]) -> None:
        rows = [(b"key-1", b"a"), (b"key-2", b"b")]
        ledger.sends_rows(TRANSFER, rows)
        ledger.sends_rows(TRANSFER, rows)
        ledger.merged(OWN, TRANSFER, rows)
        assert not failures
        ledger.merged(OWN, TRANSFER, rows[:1])
        ledger.sends_rows(TRANSFER, rows[:1])
        assert [text[:10] for text in failures] == ["INV-XFER-2"] * 2

    _with_ledger(story)


def test_after_a_close_nothing_happens_but_what_had_begun_where_it_was_not_waited_for() -> None:
    def story(ledger: TransfersLedger, disk: ProcessDisk, failures: list[str]) -> None:
        ledger.closed(SESSION, (HOST,))
        ledger.effect(OWN, SESSION, began=-1.0)
        ledger.held(HOST, "n1-bulk", (SESSION,))
        assert not failures
        ledger.effect(OWN, SESSION, began=1.0)
        ledger.closed(SESSION, ())
        ledger.effect(OWN, SESSION, began=-1.0)
        ledger.held(HOST, "n1-bulk", (SESSION,))
        assert [text[:10] for text in failures] == ["INV-XFER-1"] * 3

    _with_ledger(story)


def test_what_is_left_over_is_named() -> None:
    def story(ledger: TransfersLedger, disk: ProcessDisk, failures: list[str]) -> None:
        assert find_leftovers(disk, "/data") is None
        _written(disk, "/data/staging/key", b"")
        assert find_leftovers(disk, "/data") is None
        _written(disk, "/data/checkpoints/a/record", b"")
        assert find_leftovers(disk, "/data") == "INV-XFER-5: /data/checkpoints still has a"

    _with_ledger(story)
