"""The archive that `ebla spark-env` packs, on executors with only a bare Python."""

import json
import os
from pathlib import Path

import pytest
from tests.pipeline.small_node import running_node
from tests.pipeline.standalone import StandaloneCluster

JOB = """
import sys
from pyspark.sql import SparkSession

contact, master, *settings = sys.argv[1:]
builder = SparkSession.builder.master(master).config("spark.driver.host", "127.0.0.1")
for setting in settings:
    builder = builder.config(*setting.split("=", 1))
spark = builder.getOrCreate()
options = {"contact": contact, "shortcut": "false"}
rows = spark.range(2_000).selectExpr("cast(id AS int) AS k", "concat('value ', id) AS v")
rows.write.format("ebla").options(**options).mode("append").save("far.t")
table = spark.read.format("ebla").options(**options).load("far.t")
print(table.count(), table.where("v = 'value 7'").first().k)


def where(batches):
    import pyarrow as pa
    yield from (pa.RecordBatch.from_pydict({"at": [pa.__file__]}) for _ in batches)


print(spark.range(1).mapInArrow(where, "at string").first().at)
"""


@pytest.mark.long
def test_executors_with_nothing_but_a_python(tmp_path: Path) -> None:
    archive = tmp_path / "env.tar.gz"
    program = tmp_path / "job.py"
    program.write_text(JOB)
    with running_node(tmp_path) as node, StandaloneCluster(tmp_path) as spark:
        node.cql(
            "CREATE KEYSPACE far WITH replication = {'class': 'NetworkTopologyStrategy', 'dc1': 1}",
            "CREATE TABLE far.t (k int PRIMARY KEY, v text)",
        )
        packed = node.run("-m", "ebla", "spark-env", str(archive), "--json")
        assert packed.returncode == 0, packed.stderr
        packing = json.loads(packed.stdout)
        quick = "spark.executor.extraJavaOptions=-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
        settings = [quick, *(f"{name}={value}" for name, value in packing["settings"].items())]
        ended = node.run(str(program), node.contact, spark.master, *settings, **packing["environment"])
        assert ended.returncode == 0, f"{ended.stdout}\n{ended.stderr[-4000:]}"
    counted, place = ended.stdout.splitlines()[-2:]
    assert counted == "2000 7"
    assert f"{os.sep}environment{os.sep}" in place, "pyarrow came with the archive"
