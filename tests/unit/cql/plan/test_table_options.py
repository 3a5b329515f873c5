"""Options of tables: a table of accepted and refused values."""

import pytest
from tests.unit.cql.world import Cql

from ebla.cql.parse.parser import parse
from ebla.cql.parse.statements import CreateTableStatement
from ebla.cql.plan.table_options import ACCEPTED_OPTIONS, check_option
from ebla.model.errors import BadConfiguration, BadSyntax

SIZE_TIERED, LEVELED = "'class': 'SizeTieredCompactionStrategy'", "'class': 'LeveledCompactionStrategy'"
WINDOWS = "'class': 'TimeWindowCompactionStrategy'"
LZ4 = "'sstable_compression': 'LZ4Compressor'"

ACCEPTED: dict[str, list[str]] = {
    "additional_write_policy": ["'99p'", "'ALWAYS'", "'none'", "'MAX(99p, 50ms)'"],
    "allow_auto_snapshot": ["true"],
    "bloom_filter_fp_chance": ["0.01", "1.0", "1", "'0.5'", "6.72e-05"],
    "caching": ["{}", "{'keys': 'ALL', 'rows_per_partition': 'NONE'}", "{'rows_per_partition': 100, 'enabled': true}"],
    "cdc": ["true", "{'enabled': true, 'ttl': 5, 'preimage': 'full'}"],
    "comment": ["'x'", "''"],
    "compaction": [
        f"{{{SIZE_TIERED}}}",
        f"{{{SIZE_TIERED}, 'min_threshold': 2, 'max_threshold': '4', 'enabled': 'false', 'bucket_low': 0.1}}",
        f"{{{LEVELED}, 'sstable_size_in_mb': 160, 'tombstone_threshold': '0.2'}}",
        "{'class': 'org.apache.cassandra.db.compaction.LeveledCompactionStrategy'}",
        f"{{{WINDOWS}, 'compaction_window_unit': 'DAYS', 'compaction_window_size': 1}}",
        "{'class': 'UnifiedCompactionStrategy', 'scaling_parameters': 'T4'}",
        "{'class': 'IncrementalCompactionStrategy', 'space_amplification_goal': '1.5'}",
    ],
    "compression": [
        "{}",
        f"{{{LZ4}, 'chunk_length_in_kb': 64}}",
        "{'class': 'org.apache.cassandra.io.compress.ZstdCompressor', 'compression_level': '3'}",
        "{'sstable_compression': ''}",
        "{'enabled': false}",
    ],
    "crc_check_chance": ["0", "0.5", "1"],
    "dclocal_read_repair_chance": ["0.1"],
    "default_time_to_live": ["0", "630720000"],
    "extensions": ["{'a': 'b'}"],
    "gc_grace_seconds": ["0", "864000"],
    "id": ["5a1c395e-b41f-11e5-9f22-ba0be0483c18"],
    "in_memory": ["false"],
    "incremental_backups": ["true"],
    "max_index_interval": ["2048"],
    "memtable": ["'default'"],
    "memtable_flush_period_in_ms": ["0"],
    "min_index_interval": ["128"],
    "paxos_grace_seconds": ["5"],
    "per_partition_rate_limit": ["{'max_reads_per_second': 5}"],
    "read_repair": ["'BLOCKING'", "'NONE'"],
    "read_repair_chance": ["0.0"],
    "scylla_encryption_options": ["{'cipher_algorithm': 'x'}"],
    "speculative_retry": ["'NONE'", "'always'", "'99.9PERCENTILE'", "'99p'", "'50ms'", "'MIN(99p, 50ms)'"],
    "synchronous_updates": ["false"],
    "tablets": ["{'min_tablet_count': 4}", "{'expected_data_size_in_gb': 100}"],
    "tombstone_gc": ["{'mode': 'repair'}", "{'mode': 'timeout', 'propagation_delay_in_seconds': '73'}"],
}

REFUSED: dict[str, list[str]] = {
    "additional_write_policy": ["'sometimes'", "5"],
    "bloom_filter_fp_chance": ["0", "6.71e-05", "0.00006", "1.01", "-1", "'x'", "NaN", "{'a': 'b'}"],
    "caching": ["'ALL'", "{'keys': 'SOME'}", "{'rows_per_partition': -1}", "{'nope': 'ALL'}"],
    "cdc": ["'maybe'", "{'nope': true}"],
    "comment": ["{'a': 'b'}"],
    "compaction": [
        "'SizeTieredCompactionStrategy'",
        "{}",
        "{'class': 'NopeStrategy'}",
        f"{{{SIZE_TIERED}, 'nope': 1}}",
        f"{{{SIZE_TIERED}, 'sstable_size_in_mb': 1}}",
        f"{{{SIZE_TIERED}, 'min_threshold': 1}}",
        f"{{{SIZE_TIERED}, 'min_threshold': 8, 'max_threshold': 4}}",
        f"{{{SIZE_TIERED}, 'bucket_low': 2, 'bucket_high': 1}}",
        f"{{{SIZE_TIERED}, 'bucket_high': 'x'}}",
        f"{{{SIZE_TIERED}, 'tombstone_threshold': 1.5}}",
        f"{{{SIZE_TIERED}, 'enabled': 'maybe'}}",
        f"{{{LEVELED}, 'sstable_size_in_mb': 0}}",
        f"{{{WINDOWS}, 'compaction_window_unit': 'YEARS'}}",
    ],
    "compression": [
        "'LZ4Compressor'",
        "{'sstable_compression': 'NopeCompressor'}",
        "{'chunk_length_in_kb': 64}",
        f"{{{LZ4}, 'nope': 1}}",
        *(f"{{{LZ4}, 'chunk_length_in_kb': {value}}}" for value in ("0", "-1", "3", "null", "'word'", "0.5")),
    ],
    "crc_check_chance": ["-0.1", "1.1"],
    "default_time_to_live": ["-1", "630720001"],
    "gc_grace_seconds": ["-1", "'x'", "0.5"],
    "id": ["'x'"],
    "in_memory": ["1"],
    "max_index_interval": ["0", "1"],
    "memtable_flush_period_in_ms": ["-1"],
    "min_index_interval": ["0", "4096"],
    "nope": ["1", "{}"],
    "per_partition_rate_limit": ["{'max_reads_per_second': -5}", "{'nope': 5}", "5"],
    "read_repair": ["'SOME'"],
    "speculative_retry": ["'101PERCENTILE'", "'-1p'", "'99'", "'ms'", "'5 minutes'", "'MIN(1)'"],
    "tablets": ["5", "{'min_tablet_count': 'x'}", "{'nope': 1}"],
    "tombstone_gc": ["'repair'", "{}", "{'mode': 'nope'}", "{'mode': 'timeout', 'propagation_delay_in_seconds': -1}"],
}


def created(option: str, value: str) -> CreateTableStatement:
    statement = parse(f"CREATE TABLE t (k int PRIMARY KEY) WITH {option} = {value}").statement
    assert isinstance(statement, CreateTableStatement)
    return statement


def test_every_option_has_accepted_values() -> None:
    assert sorted(ACCEPTED) == sorted(ACCEPTED_OPTIONS)


@pytest.mark.parametrize(("option", "value"), [(name, value) for name, values in ACCEPTED.items() for value in values])
def test_accepted_values(option: str, value: str) -> None:
    for name, given in created(option, value).properties.items:
        check_option(name, given)


@pytest.fixture(scope="module")
def cql() -> Cql:
    return Cql()


@pytest.mark.parametrize(("option", "value"), [(name, value) for name, values in REFUSED.items() for value in values])
def test_refused_values(cql: Cql, option: str, value: str) -> None:
    with pytest.raises(BadConfiguration):
        cql.run(f"CREATE TABLE t (k int PRIMARY KEY) WITH {option} = {value}")


@pytest.mark.parametrize("value", ["{'rows_per_partition': ALL}", "ALL", "timestamp", "?"])
def test_words_have_to_be_in_quotes(value: str) -> None:
    with pytest.raises(BadSyntax):
        created("caching", value)


def test_options_are_shown_as_they_took_effect(cql: Cql) -> None:
    cql.run("CREATE TABLE shown (k int PRIMARY KEY) WITH speculative_retry = '99.5percentile'")
    cql.run("ALTER TABLE shown WITH tombstone_gc = {'mode': 'repair', 'propagation_delay_in_seconds': '73'}")
    (text,) = cql.rows("DESCRIBE TABLE shown")[0][3:]
    assert "speculative_retry = '99.5PERCENTILE'" in text
    assert "tombstone_gc = {'mode': 'repair', 'propagation_delay_in_seconds': '73'}" in text
    (options,) = [one.options for one in cql.view.current.schemas.values() if one.name == "shown"]
    assert options.propagation_s == 73
    cql.run("ALTER TABLE shown WITH tombstone_gc = {'mode': 'timeout'}")
    (text,) = cql.rows("DESCRIBE TABLE shown")[0][3:]
    assert "tombstone_gc = {'mode': 'timeout', 'propagation_delay_in_seconds': '3600'}" in text


def test_tablets_need_a_keyspace_with_tablets(cql: Cql) -> None:
    cql.run("CREATE KEYSPACE vnodes WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}")
    for statement in ("CREATE TABLE vnodes.t (k int PRIMARY KEY) WITH", "ALTER TABLE vnodes.u WITH"):
        if statement.startswith("ALTER"):
            cql.run("CREATE TABLE vnodes.u (k int PRIMARY KEY)")
        with pytest.raises(BadConfiguration, match="keyspace without tablets"):
            cql.run(f"{statement} tablets = {{'min_tablet_count': 2}}")


def test_the_initial_tablets_of_a_keyspace_can_be_altered(cql: Cql) -> None:
    cql.run("ALTER KEYSPACE ks WITH tablets = {'initial': 2}")
    assert cql.view.current.snapshot.keyspaces["ks"].initial_tablets == 2
    cql.run("ALTER KEYSPACE ks WITH durable_writes = true")
    assert cql.view.current.snapshot.keyspaces["ks"].initial_tablets == 2
