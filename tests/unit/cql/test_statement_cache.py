"""Memory of compiled statements."""

import gc
import tracemalloc

import msgspec
import pytest
from tests.unit.cql.world import Cql

from ebla.cql.statement_cache import QUERY_BYTES_MAX, StatementCache
from ebla.model.errors import Unprepared
from ebla.options import DEFAULT_LIMITS

NUMBERS = ", ".join(str(number) for number in range(300))
TEXTS = {
    "a point read": "SELECT v FROM t WHERE k = ? AND c = %d",
    "an insert": "INSERT INTO t (k, c, v) VALUES (?, ?, '%d')",
    "a long text": "INSERT INTO t (k, c, v) VALUES (1, 1, '" + "x" * 50_000 + "%d')",
    "a long text of wide characters": "INSERT INTO t (k, c, v) VALUES (1, 1, '" + "\U0001f411" * 50_000 + "%d')",
    "a long comment": "SELECT v FROM t WHERE k = 1 AND c = %d -- " + "x" * 50_000,
    "a long list": f"SELECT v FROM t WHERE k IN ({NUMBERS}) AND c = %d",
    "a large set": f"INSERT INTO t (k, c, s) VALUES (1, 1, {{{NUMBERS}, %d}})",
    "a batch": "BEGIN BATCH "
    + "INSERT INTO t (k, c, v) VALUES (1, 1, 'a'); " * 50
    + "DELETE FROM t WHERE k = %d; APPLY BATCH",
}


@pytest.fixture
def cql() -> Cql:
    made = Cql()
    made.run("CREATE TABLE t (k int, c int, v text, s set<int>, PRIMARY KEY (k, c))")
    return made


def statements(cql: Cql, bytes_max: int = DEFAULT_LIMITS.cql_statement_cache_bytes_max) -> StatementCache:
    limits = msgspec.structs.replace(DEFAULT_LIMITS, cql_statement_cache_bytes_max=bytes_max)
    return StatementCache(cql.view, cql.executor.virtual, (), limits)


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_the_size_of_a_statement_is_known_within_a_factor_of_two(cql: Cql, text: str) -> None:
    cache, count = statements(cql), 10
    cache.prepare(text % count, cql.session.keyspace)  # what the first one leaves in caches of others
    gc.collect()
    tracemalloc.start()
    estimated = 0
    for number in range(count):
        _, compiled = cache.prepare(text % number, cql.session.keyspace)
        estimated += compiled.size_bytes
    gc.collect()
    measured, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert measured / 2 <= estimated <= measured * 2


def test_prepared_statements_and_queries_share_one_bound(cql: Cql) -> None:
    cache, keyspace = statements(cql, bytes_max=60_000), cql.session.keyspace
    first, _ = cache.prepare("SELECT v FROM t WHERE k = ? AND c = 1", keyspace)
    for number in range(100):
        cache.query(f"SELECT v FROM t WHERE k = {number} AND c = 1", keyspace)
        kept, _ = cache.prepare("SELECT c FROM t WHERE k = ?", keyspace)
    cache.prepared(kept)
    with pytest.raises(Unprepared):
        cache.prepared(first)


def test_a_long_query_is_not_kept(cql: Cql) -> None:
    cache, keyspace = statements(cql), cql.session.keyspace
    for size, is_kept in ((10, True), (QUERY_BYTES_MAX, False)):
        text = f"INSERT INTO t (k, c, v) VALUES (1, 1, '{'x' * size}')"
        assert (cache.query(text, keyspace) is cache.query(text, keyspace)) == is_kept
