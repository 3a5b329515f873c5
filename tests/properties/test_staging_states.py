"""Staging under any order of attempts, seals, releases and crashes, against a small model."""

import uuid
import zlib
from dataclasses import dataclass
from functools import partial

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.bulk.staging_rig import PLACE, RANGES, SESSION, TRANSFER, StagingRig, target
from tests.unit.journal.on_disks import Machine
from tests.unit.storage.small_table import SMALL

from ebla.bulk.seal import SealSpec
from ebla.model.errors import EblaError
from ebla.model.identity import AttemptId
from ebla.model.transfers import StagedFile
from ebla.sim.disk import ProcessDisk
from ebla.storage.codec.staging_format import read_sealed
from ebla.wire.transfer_messages import FlightPut

ATTEMPTS = tuple(AttemptId(uuid.UUID(int=number)) for number in (21, 22, 23))
NAME = "0/a.sst"
BYTES = 12


@dataclass
class Model:
    """The sealed attempt, and whether the staging was released."""

    winner: AttemptId | None = None
    is_released: bool = False
    released_winner: AttemptId | None = None
    """A power cut may undo a release: nobody waits until it is durable, and to adopt it again changes nothing."""


def content_of(attempt: AttemptId) -> bytes:
    """What it brings, if it brings it whole."""
    return attempt.bytes[-1:] * BYTES


OPERATION = st.tuples(
    st.sampled_from(["put", "put", "put", "seal", "seal", "open", "die", "lose_power", "release"]),
    st.integers(0, 2),
    st.integers(1, BYTES),
)


@settings(max_examples=80, deadline=None)
@given(st.lists(OPERATION, max_size=25), st.integers(0, 1 << 30))
def test_one_attempt_counts_whole_and_for_good(script: list[tuple[str, int, int]], seed: int) -> None:
    """INV-XFER-2."""
    machine, model = Machine(seed), Model()
    lives: list[list[tuple[str, int, int]]] = [[]]
    for operation in script:
        lives[-1].append(operation)
        if operation[0] in ("die", "lose_power"):
            lives.append([])
    for life in lives:
        machine.run(partial(_live, steps=life, model=model))
        if life and life[-1][0] == "lose_power":
            machine.lose_power()
            machine.run(partial(_notice_undone_release, model=model))
        machine.run(partial(_check, model=model))


async def _live(disk: ProcessDisk, steps: list[tuple[str, int, int]], model: Model) -> None:
    rig = await StagingRig(disk).begin()
    for kind, number, count in steps:
        attempt = ATTEMPTS[number]
        try:
            await rig.staging.open(SESSION, TRANSFER, target())
        except EblaError:
            assert model.is_released
        match kind:
            case "put":
                await _put(rig, model, attempt, count)
            case "seal":
                await _seal(rig, model, attempt)
            case "release":
                await rig.staging.release(SESSION, [TRANSFER])
                model.released_winner = model.winner or model.released_winner
                model.winner, model.is_released = None, True
            case _:
                pass
    if steps and steps[-1][0] in ("die", "lose_power"):
        model.is_released = False  # the next life knows of no place, and may open one


async def _put(rig: StagingRig, model: Model, attempt: AttemptId, count: int) -> None:
    try:
        staged = rig.staging.find(SESSION, TRANSFER)
        place = await rig.puts.open(staged, FlightPut(ticket=b"", attempt=attempt, name=NAME, size_bytes=BYTES))
    except EblaError:
        assert model.winner is not None or model.is_released
        return
    assert model.winner is None
    await rig.puts.append(place, content_of(attempt)[place.received_bytes :][:count])
    rig.puts.close(place)


def _brought(rig: StagingRig, attempt: AttemptId) -> bytes:
    """As it is here: with the attempt, or where a seal that failed has left it."""
    folders = [str(attempt), *(name for name in rig.own.list_folder(PLACE) if name.startswith(f"sealed-{attempt.hex}"))]
    paths = [f"{PLACE}/{folder}/{NAME}" for folder in folders]
    return next((rig.read(path) for path in paths if rig.own.exists(path)), b"")


async def _seal(rig: StagingRig, model: Model, attempt: AttemptId) -> None:
    file = StagedFile(name=NAME, size_bytes=BYTES, checksum=zlib.crc32(content_of(attempt)))
    is_whole = rig.own.exists(PLACE) and _brought(rig, attempt) == content_of(attempt)
    try:
        staged = rig.staging.find(SESSION, TRANSFER)
        await rig.sealer.seal(staged, SealSpec(attempt=attempt, files=(file,), layers=RANGES[:1], schema=SMALL))
    except EblaError:
        assert model.winner not in (None, attempt) or not is_whole or model.is_released
        assert model.winner != attempt
        return
    assert model.winner == attempt or (model.winner is None and is_whole)
    model.winner = attempt


async def _notice_undone_release(disk: ProcessDisk, model: Model) -> None:
    sealed = await read_sealed(disk, PLACE) if disk.exists(PLACE) else None
    if sealed is not None and model.winner is None and sealed.attempt == model.released_winner:
        model.winner = sealed.attempt


async def _check(disk: ProcessDisk, model: Model) -> None:
    sealed = await read_sealed(disk, PLACE) if disk.exists(PLACE) else None
    assert (None if sealed is None else sealed.attempt) == model.winner
    if sealed is not None:
        assert StagingRig(disk).read(f"{PLACE}/{sealed.layers[0].folder}/a.sst") == content_of(sealed.attempt)
