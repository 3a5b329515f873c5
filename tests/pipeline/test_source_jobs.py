"""Tables written and read by a user's Spark, on tablets and on vnodes, compared with what a CQL driver sees."""

import itertools
import random
import uuid
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from tests.pipeline.rows_model import SCHEMA, SELECTED, TABLE, InputRow, RowsModel, random_rows
from tests.pipeline.served_nodes import ServedNodes
from tests.pipeline.source_jobs import MASTER, OneSpark, SourceJobs
from tests.pipeline.typed_values import NO_KEYS, TYPES, plain


@pytest.fixture(scope="module")
def jobs(served: ServedNodes, one_spark: OneSpark) -> Iterator[SourceJobs]:
    with SourceJobs(served, one_spark.user(MASTER)) as made:
        yield made
    served.wait_clean()


STAGED = {"small_rows": "0"}
"""Stages rows, however few."""


def sorted_rows(rows: Sequence[Sequence[Any]]) -> list[tuple[Any, ...]]:
    return sorted(map(tuple, rows), key=repr)


# ---- every write promise, against a model


class ModelledTable:
    def __init__(self, jobs: SourceJobs, name: str, seed: int) -> None:
        self.jobs, self.name = jobs, name
        self.model = RowsModel()
        self.rng = random.Random(seed)
        self._times = itertools.count(1)
        jobs.cql(f"CREATE TABLE {name} {TABLE}")

    def by_cql(self) -> None:
        """One statement, with its timestamp."""
        p, c, a = self.rng.randrange(12), self.rng.randrange(6), self.rng.randrange(1000)
        self.jobs.cql(f"INSERT INTO {self.name} (p, c, a) VALUES (%s, %s, %s)", p, c, a)
        self.model.apply(next(self._times), [(p, c, None, a, None, None)])

    def options(self) -> dict[str, str]:
        staged = self.rng.choice([{}, STAGED, {**STAGED, "shortcut": "false"}, {**STAGED, "run_bytes": "1k"}])
        return {"op": "what", "nulls": self.rng.choice(["unset", "delete"]), **staged}

    def job(self, rows: list[InputRow], options: Mapping[str, str]) -> None:
        self.jobs.write(self.jobs.frame(rows, SCHEMA), self.name, **options)
        self.model.apply(next(self._times), rows, nulls_delete=options["nulls"] == "delete")

    def failed_and_run_again(self, rows: list[InputRow], options: dict[str, str]) -> None:
        """The second run writes at the timestamp of the first: writes in between are newer."""
        began = next(self._times)
        named = {**options, **STAGED, "job": f"again-{began}"}
        with pytest.raises(PySparkException):
            self.jobs.write(failing(self.jobs.frame(rows, SCHEMA)), self.name, **named)
        self.check()
        self.by_cql()
        self.jobs.write(self.jobs.frame(rows, SCHEMA), self.name, **named)
        self.model.apply(began, rows, nulls_delete=options["nulls"] == "delete")
        self.check()
        self.by_cql()
        self.jobs.write(self.jobs.frame(random_rows(self.rng, 5), SCHEMA), self.name, **named)

    def check(self, **options: str) -> None:
        """Compares with reads by Spark and by a driver."""
        wanted = sorted_rows(self.model.visible())
        assert sorted_rows(self.jobs.cql(f"SELECT {SELECTED} FROM {self.name}")) == wanted
        assert sorted_rows(self.jobs.read(self.name, **options).select("p", "c", "s", "a", "b").collect()) == wanted


def failing(frame: DataFrame) -> DataFrame:
    """Returns all rows, then the last task fails, at each attempt."""

    def fail(batches: Iterator[Any]) -> Iterator[Any]:
        yield from batches
        context = TaskContext.get()
        assert context is not None
        assert context.partitionId() == 0, "this task fails"

    return frame.mapInArrow(fail, frame.schema)


@pytest.mark.parametrize(("keyspace", "levels"), [("jobs", ("ONE", "LOCAL_QUORUM", "ALL")), ("jobs_vn", ("QUORUM",))])
def test_random_jobs_do_what_a_dict_does(jobs: SourceJobs, keyspace: str, levels: Sequence[str]) -> None:
    table = ModelledTable(jobs, f"{keyspace}.modelled", seed=len(keyspace))
    for level in levels:
        table.job(random_rows(table.rng, table.rng.choice([5, 60, 300])), table.options())
        table.by_cql()
        table.check(consistency=level)
    table.failed_and_run_again(random_rows(table.rng, 40), table.options())
    table.check()


def test_overwriting_is_asked_for_twice(jobs: SourceJobs) -> None:
    table = ModelledTable(jobs, "jobs.replaced", seed=3)
    first, second = random_rows(table.rng, 30), random_rows(table.rng, 30)
    table.job(first, {"op": "what", "nulls": "unset"})
    with pytest.raises(PySparkException, match=r"deletes all rows of jobs\.replaced first.*confirm\.truncate=true"):
        jobs.write(jobs.frame(second, SCHEMA), table.name, "overwrite", op="what")
    table.check()
    asked = {"op": "what", "job": "new", "confirm__truncate": "true"}
    jobs.write(jobs.frame(second, SCHEMA), table.name, "overwrite", **asked)
    table.model.clear()
    table.model.apply(2, second)
    table.check()
    jobs.cql(f"INSERT INTO {table.name} (p, c, a) VALUES (77, 1, 5)")
    table.model.apply(3, [(77, 1, None, 5, None, None)])
    # The job is done already, so the table is not truncated again.
    jobs.write(jobs.frame(first, SCHEMA), table.name, "overwrite", **asked)
    table.check()


# ---- attempts


@pytest.mark.parametrize(
    "options",
    [pytest.param({}, marks=pytest.mark.long), {"small_rows": "0", "run_bytes": "4k"}],
    ids=["small", "staged"],
)
def test_only_the_try_that_won_counts(jobs: SourceJobs, options: dict[str, str]) -> None:
    """Each attempt has different rows, and fails after the last one."""
    name = f"jobs.tries_{len(options)}"
    jobs.cql(f"CREATE TABLE {name} (k int PRIMARY KEY, try int, own text)")

    def tried(batches: Iterator[Any]) -> Iterator[Any]:
        context = TaskContext.get()
        assert context is not None
        attempt = context.attemptNumber()
        for frame in batches:
            frame["try"] = attempt
            frame["own"] = [str(uuid.uuid4()) for _ in range(len(frame))]
            frame["k"] += 10_000 * attempt
            yield frame
        assert attempt == 2, "this try fails"

    frame = jobs.spark.range(0, 2_000, 1, 2).selectExpr("CAST(id AS int) AS k")
    jobs.write(frame.mapInPandas(tried, "k int, try int, own string"), name, **options)
    assert jobs.cql(f"SELECT count(*) FROM {name}") == [(2_000,)]
    found = jobs.read(name).agg(f.count("k"), f.min("try"), f.min("k"), f.max("k"), f.count_distinct("own")).collect()
    assert [tuple(row) for row in found] == [(2_000, 2, 20_000, 21_999, 2_000)]


# ---- streams


def test_a_stream_that_is_restarted_writes_each_batch_once(jobs: SourceJobs, tmp_path: Path) -> None:
    """Spark died after the batch was committed and before it recorded that: it sends the batch again."""
    jobs.cql("CREATE TABLE jobs.streamed (k int PRIMARY KEY, v int)")
    schema, commits = "k int, v int", tmp_path / "checkpoint" / "commits"

    def bring(number: int, rows: Sequence[tuple[int, int]]) -> None:
        jobs.frame(rows, schema, 1).write.parquet(str(tmp_path / "in" / f"part={number}"))

    def run(fails: bool = False) -> None:
        stream = jobs.spark.readStream.schema(f"{schema}, part int").option("maxFilesPerTrigger", 1)
        frame = stream.parquet(str(tmp_path / "in")).drop("part")
        frame = frame.where(f.assert_true(f.lit(False)).isNull()) if fails else frame
        written = frame.writeStream.format("ebla").options(contact=jobs.contact, table="jobs.streamed", **STAGED)
        written = written.option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = written.trigger(availableNow=True).start()
        query.awaitTermination()

    def seen() -> dict[int, int]:
        return dict(jobs.cql("SELECT k, v FROM jobs.streamed"))

    bring(0, [(1, 10), (2, 20)])
    run()
    bring(1, [(2, 21), (3, 31)])
    run()
    assert seen() == {1: 10, 2: 21, 3: 31}
    jobs.cql("INSERT INTO jobs.streamed (k, v) VALUES (3, 99)")
    jobs.cql("DELETE FROM jobs.streamed WHERE k = 2")
    for path in (commits / "1", commits / ".1.crc"):
        path.unlink()
    run()
    assert seen() == {1: 10, 3: 99}
    assert (commits / "1").exists()
    bring(2, [(4, 40)])
    with pytest.raises(PySparkException):
        run(fails=True)
    assert seen() == {1: 10, 3: 99}
    run()
    assert seen() == {1: 10, 3: 99, 4: 40}


# ---- types


def typed_row(number: int, kinds: Sequence[str], side: int) -> tuple[Any, ...]:
    """The values of this number of each type, as Spark (0) or the driver (1) has them."""
    return tuple(TYPES[kind][1][number % len(TYPES[kind][1])][side] for kind in kinds)


def check_typed(jobs: SourceJobs, name: str, columns: Sequence[str], kinds: Sequence[str], rows: int) -> None:
    """By the first column, which has the number of the row."""
    found = {row[0]: plain(row[1:]) for row in jobs.cql(f"SELECT {', '.join(columns)} FROM {name}")}
    read = {row[0]: plain(tuple(row)[1:]) for row in jobs.read(name).select(*columns).collect()}
    assert sorted(found) == sorted(read) == list(range(rows))
    for number in range(rows):
        for place, kind in enumerate(kinds):
            wanted = typed_row(number, [kind], 1)[0]
            assert found[number][place] == wanted, f"by CQL: {kind}"
            by_spark = read[number][place]
            if kind == "decimal":  # equal decimals are the same key
                by_spark, wanted_too = Decimal(by_spark), wanted
            else:
                wanted_too = plain(typed_row(number, [kind], 0)[0])
            assert by_spark == wanted_too, f"by Spark: {kind}"


@pytest.mark.parametrize("options", [pytest.param({}, marks=pytest.mark.long), STAGED], ids=["small", "staged"])
def test_every_type_there_and_back(jobs: SourceJobs, options: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    kinds, name = list(TYPES), f"jobs.typed_{len(options)}"
    columns = ["k", *(f"t{place}" for place in range(len(kinds)))]
    declared = ", ".join(f"{column} {kind}" for column, kind in zip(columns[1:], kinds))
    jobs.cql(f"CREATE TABLE {name} (k int PRIMARY KEY, {declared})")
    schema = ", ".join(["k int", *(f"{column} {TYPES[kind][0]}" for column, kind in zip(columns[1:], kinds))])
    rows = max(len(values) for _, values in TYPES.values())
    given = [(number, *typed_row(number, kinds, 0)) for number in range(rows)]
    jobs.write(jobs.frame(given, schema), name, **options)
    check_typed(jobs, name, columns, kinds, rows)
    jobs.write(jobs.frame([(rows, *(None for _ in kinds))], schema), name, **options)
    nothing = (rows, *(None for _ in kinds))
    assert jobs.cql(f"SELECT {', '.join(columns)} FROM {name} WHERE k = {rows}") == [nothing]
    assert [tuple(row) for row in jobs.read(name, where=f"k = {rows}").select(*columns).collect()] == [nothing]


def test_every_type_in_keys(jobs: SourceJobs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    kinds = [kind for kind in TYPES if "<" not in kind and kind not in NO_KEYS] + ["frozen<list<int>>"]
    columns = ["v", *(f"t{place}" for place in range(len(kinds)))]
    declared = ", ".join(f"{column} {kind}" for column, kind in zip(columns[1:], kinds))
    order = ", ".join(f"{column} {'DESC' if place % 2 else 'ASC'}" for place, column in enumerate(columns[4:]))
    key = f"(({', '.join(columns[1:4])}), {', '.join(columns[4:])})"
    jobs.cql(f"CREATE TABLE jobs.keyed (v int, {declared}, PRIMARY KEY {key}) WITH CLUSTERING ORDER BY ({order})")
    schema = ", ".join(["v int", *(f"{column} {TYPES[kind][0]}" for column, kind in zip(columns[1:], kinds))])
    rows = max(len(TYPES[kind][1]) for kind in kinds)
    given = [(number, *typed_row(number, kinds, 0)) for number in range(rows)]
    jobs.write(jobs.frame(given, schema), "jobs.keyed", **STAGED)
    check_typed(jobs, "jobs.keyed", columns, kinds, rows)


# ---- sizes


def test_many_rows_half_of_them_in_one_partition(jobs: SourceJobs) -> None:
    jobs.cql("CREATE TABLE jobs_one.many (p bigint, c int, v bigint, t text, PRIMARY KEY (p, c))")
    rows, half = 120_000, 60_000
    frame = jobs.spark.range(0, rows, 1, 4).selectExpr(
        f"CASE WHEN id < {half} THEN 0 ELSE id DIV 2 END AS p",
        "CAST(id AS int) AS c",
        "xxhash64(id) AS v",
        "CAST(id % 1000 AS string) AS t",
    )
    jobs.write(frame, "jobs_one.many")
    sums = [f.count("c"), f.count_distinct("p"), f.sum("c"), f.bit_xor(f.xxhash64("p", "c", "v", "t"))]
    wanted = frame.agg(*sums).collect()
    for options in ({}, {"split_bytes": "1m", "consistency": "ONE"}):
        assert jobs.read("jobs_one.many", **options).agg(*sums).collect() == wanted
    of_one = jobs.read("jobs_one.many", where=f"p = 0 AND c >= {half - 10}")
    assert sorted(row.c for row in of_one.collect()) == list(range(half - 10, half))
    assert jobs.cql("SELECT count(*) FROM jobs_one.many WHERE p = 40000") == [(2,)]


# ---- conditions


def random_condition(rng: random.Random) -> str:
    """A condition that CQL accepts too."""
    p, c = rng.randrange(12), rng.randrange(20)
    last = f"{rng.choice(['>', '>=', '<', '<=', '='])} {c}"
    token = f"token(p, q) > {rng.randrange(-(2**63), 2**63)}"
    return rng.choice([
        f"p = {p} AND q = 'q{p % 3}'",
        f"p IN ({p}, {p + 1}) AND q = 'q{p % 3}' AND c {last}",
        f"p = {p} AND q IN ('q0', 'q1') AND c = {c} AND d >= 'd{c % 5}'",
        f"p = {p}",
        f"c {last}",
        f"c = {c} AND d < 'd{c % 5}'",
        f"{token} AND c {last}",
        token,
    ])  # fmt: skip


def test_conditions_find_what_they_find_over_cql(jobs: SourceJobs) -> None:
    jobs.cql("CREATE TABLE jobs.asked (p int, q text, c int, d text, v int, PRIMARY KEY ((p, q), c, d)) "
             "WITH CLUSTERING ORDER BY (c DESC, d ASC)")  # fmt: skip
    rng = random.Random(11)
    rows = [
        (p, f"q{p % 3}", rng.randrange(20), f"d{rng.randrange(5)}", number)
        for number, p in enumerate(rng.choices(range(12), k=600))
    ]
    jobs.write(jobs.frame(rows, "p int, q string, c int, d string, v int").dropDuplicates(["p", "q", "c", "d"]),
               "jobs.asked", **STAGED)  # fmt: skip
    jobs.cql("DELETE FROM jobs.asked WHERE p = 1 AND q = 'q1' AND c > 10")
    whole = jobs.read("jobs.asked", token="tok").cache()
    jobs.spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        for _ in range(3):
            condition = random_condition(rng)
            wanted = sorted_rows(jobs.cql(f"SELECT p, q, c, d, v FROM jobs.asked WHERE {condition} ALLOW FILTERING"))
            in_spark = condition.replace("token(p, q)", "tok")
            pushed = jobs.read("jobs.asked", token="tok", pushdown="true").where(in_spark)
            asked = jobs.read("jobs.asked", where=condition, token="tok")
            for how, frame in {"spark": whole.where(in_spark), "pushed": pushed, "where": asked}.items():
                assert sorted_rows(frame.drop("tok").collect()) == wanted, f"{how}: {condition}"
    finally:
        jobs.spark.conf.unset("spark.sql.python.filterPushdown.enabled")
        whole.unpersist()


# ---- mistakes


def test_mistakes_of_who_writes_say_what_to_do(jobs: SourceJobs) -> None:
    jobs.cql("CREATE TABLE jobs.strict (p int, c text, v int, PRIMARY KEY (p, c))")
    jobs.cql("CREATE TABLE jobs.captured (p int PRIMARY KEY) WITH cdc = {'enabled': true}")
    jobs.cql("CREATE TABLE jobs.named (k text PRIMARY KEY)")
    for rows, schema, options, words in (
        ([(1, 2)], "p int, v int", {}, "lacks key columns of jobs.strict: c"),
        ([(1, None)], "p int, c string", {}, "key column 'c' of jobs.strict is null in 1 rows"),
        ([(1, "x", "y")], "p int, c string, v string", {}, "column 'v'"),
        ([(1, "x", 2**40)], "p int, c string, v bigint", {}, "column 'v' has a value that a CQL int does not hold"),
        ([(1, "x", 1)], "p int, c string, w int", {}, "has no column 'w'; there are: c, p, v"),
        ([(1, "x", "drop")], "p int, c string, o string", {"op": "o"}, "column 'o' holds 'drop'"),
        ([(1, "x")], "p int, c string", {"table": "jobs.strikt"}, "has no table 'strikt'; did you mean 'strict'?"),
        ([(1, "x")], "p int, c string", {"contact": "127.0.0.1:9"}, "no node answers (127.0.0.1:9 cannot be reached"),
        ([(1,)], "p int", {"table": "jobs.captured"}, "changes of jobs.captured are captured (CDC)"),
        (
            [("",)],
            "k string",
            {"table": "jobs.named", **STAGED},
            "the partition key of jobs.named is empty in some rows",
        ),
    ):
        asked = {"contact": jobs.contact, "table": "jobs.strict", **options}
        with pytest.raises(PySparkException) as found:
            jobs.frame(rows, schema, 1).write.format("ebla").options(**asked).mode("append").save()
        assert words in str(found.value), schema
    assert jobs.cql("SELECT * FROM jobs.strict") == jobs.cql("SELECT * FROM jobs.named") == []
