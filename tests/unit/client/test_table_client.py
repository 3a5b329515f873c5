"""Statements run at a client whose rows are elsewhere."""

import pytest
from tests.unit.client.tables_rig import OneProcess

from ebla.client.table_client import TableClient
from ebla.model.consistency import ConsistencyLevel
from ebla.model.errors import InvalidRequest, WriteTimeout
from ebla.wire.cql.messages import Rows

KEYSPACE = "CREATE KEYSPACE shop WITH replication = {'class': 'NetworkTopologyStrategy', 'dc1': 3}"
TABLE = "CREATE TABLE shop.orders (id int PRIMARY KEY, total int)"


async def made(client: TableClient) -> TableClient:
    await client.run(KEYSPACE)
    await client.run(TABLE)
    return client


def test_the_topology_is_put_together_from_pages() -> None:
    one = OneProcess(3)

    async def work(client: TableClient) -> int:
        return len(list(client.snapshot.members()))

    assert one.run(work) == 3
    assert one.asked.count("group0_read") > 1, "it came in one page, and none was put together"
    assert set(one.asked) == {"group0_read"}


def test_a_change_of_the_schema_shows_in_the_next_statement() -> None:
    async def work(client: TableClient) -> Rows:
        await made(client)
        await client.run("INSERT INTO shop.orders (id, total) VALUES (1, 20)", level=ConsistencyLevel.ALL)
        answer = await client.run("SELECT total FROM shop.orders WHERE id = 1", level=ConsistencyLevel.TWO)
        assert isinstance(answer.result, Rows)
        return answer.result

    one = OneProcess()
    assert [row[0] for row in one.run(work).rows] == [(20).to_bytes(4)]
    assert one.levels == ["ALL", "TWO"]
    assert one.asked[-2:] == ["route_write", "route_read"]


def test_every_row_comes_once_page_by_page_until_enough() -> None:
    async def work(client: TableClient) -> tuple[list[int], int]:
        await made(client)
        for number in range(10):
            await client.run(f"INSERT INTO shop.orders (id, total) VALUES ({number}, 0)")
        seen: list[int] = []

        def take(page: Rows) -> bool:
            assert len(page.rows) <= 3
            seen.extend(int.from_bytes(row[0] or b"") for row in page.rows)
            return True

        await client.every_row("SELECT id FROM shop.orders", take, 3, ConsistencyLevel.QUORUM)
        pages: list[Rows] = []

        def take_one(page: Rows) -> bool:
            pages.append(page)
            return False

        await client.every_row("SELECT id FROM shop.orders", take_one, 3, ConsistencyLevel.ONE)
        return seen, len(pages)

    seen, pages = OneProcess().run(work)
    assert sorted(seen) == list(range(10))
    assert pages == 1, "whoever wants no more gets no more"


def test_what_a_shard_says_of_a_write_reaches_whoever_asked() -> None:
    one = OneProcess()

    async def work(client: TableClient) -> None:
        await made(client)
        one.failing = WriteTimeout("1 of 2", required=2, received=1)
        await client.run("INSERT INTO shop.orders (id, total) VALUES (1, 2)")

    with pytest.raises(WriteTimeout, match="1 of 2"):
        one.run(work)


def test_a_statement_that_cannot_be_right_asks_no_shard() -> None:
    one = OneProcess()

    async def work(client: TableClient) -> None:
        await made(client)
        await client.run("SELECT nothing FROM shop.orders")

    with pytest.raises(InvalidRequest):
        one.run(work)
    assert one.levels == []
