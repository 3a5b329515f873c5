"""Accepted sockets go from one process of a node to another, or stay where they are."""

import asyncio
import os
import socket
import stat
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.async_tests import real_time, runs_in

from ebla.model.errors import InvalidRequest
from ebla.model.identity import ShardNumber
from ebla.runtime.socket_passing import SocketPassing

pytestmark = runs_in(real_time)

ZERO, ONE = ShardNumber(0), ShardNumber(1)


class Shard:
    def __init__(self, folder: Path) -> None:
        self.taken: list[socket.socket] = []
        self.passing = SocketPassing(lambda number: str(folder / f"{number}.cql"), self.taken.append)

    def close(self) -> None:
        self.passing.close()
        for one in self.taken:
            one.close()


@asynccontextmanager
async def two_shards(folder: Path) -> AsyncIterator[tuple[Shard, Shard]]:
    os.chmod(folder, 0o700)
    shards = Shard(folder), Shard(folder)
    try:
        async with asyncio.timeout(60):
            yield shards
    finally:
        for shard in shards:
            shard.close()


async def until(holds: Callable[[], bool]) -> None:
    """Bounded by the test's own time."""
    while not holds():  # noqa: ASYNC110  # what is waited for has no event
        await asyncio.sleep(0.001)


async def test_a_socket_arrives_as_it_was(tmp_path: Path) -> None:
    async with two_shards(tmp_path) as (first, second):
        second.passing.listen(ONE)
        pairs = [socket.socketpair() for _ in range(50)]
        for number, (mine, theirs) in enumerate(pairs):
            mine.sendall(bytes([number]))
            assert first.passing.pass_to(ONE, theirs)
            theirs.close()
        await until(lambda: len(second.taken) == 50)
        for number, (mine, _) in enumerate(pairs):
            assert second.taken[number].recv(10) == bytes([number])
            second.taken[number].sendall(b"back")
            assert mine.recv(10) == b"back"
            mine.close()
        assert not second.taken[0].getblocking()


async def test_nobody_there_and_somebody_gone(tmp_path: Path) -> None:
    async with two_shards(tmp_path) as (first, second):
        mine, theirs = socket.socketpair()
        assert not first.passing.pass_to(ONE, theirs)
        second.passing.listen(ONE)
        assert first.passing.pass_to(ONE, theirs)
        await until(lambda: len(second.taken) == 1)
        second.passing.close()
        await until(lambda: not first.passing.pass_to(ONE, theirs))
        again = Shard(tmp_path)
        again.passing.listen(ONE)
        await until(lambda: first.passing.pass_to(ONE, theirs))
        await until(lambda: len(again.taken) == 1)
        again.close()
        mine.close()
        theirs.close()


async def test_one_that_does_not_take_them_is_not_waited_for(tmp_path: Path) -> None:
    async with two_shards(tmp_path) as (first, second):
        second.passing.listen(ONE)
        mine, theirs = socket.socketpair()
        # Nothing is received while this step runs.
        passed = 0
        while first.passing.pass_to(ONE, theirs):
            passed += 1
            assert passed < 100_000
        await until(lambda: len(second.taken) == passed)
        assert first.passing.pass_to(ONE, theirs)
        mine.close()
        theirs.close()


async def test_the_door_is_the_owners_alone_and_goes_with_it(tmp_path: Path) -> None:
    async with two_shards(tmp_path) as (first, second):
        first.passing.listen(ZERO)
        path = tmp_path / "0.cql"
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
        first.passing.close()
        assert not path.exists()
        os.chmod(tmp_path, 0o755)
        with pytest.raises(InvalidRequest, match="closed to others"):
            second.passing.listen(ONE)
