"""Spark ↔ PostgreSQL by JDBC, with the options that serve it best here."""

import socket
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from benchmarks.postgres import USER, PostgresServer, server_programs
from benchmarks.source_spark import DEFINITION, ResourcesSpent, spark_spent

INSTALL = "apt-get install postgresql libpostgresql-jdbc-java"
DRIVER = Path("/usr/share/java/postgresql.jar")
ROWS_AT_ONCE = 10_000
READERS = 4
LOOPBACK = "127.0.0.1"
DRIVER_CLASS = "org.postgresql.Driver"
"""Java does not find it without this in a jar that Spark loads."""


def driver_jar() -> Path | None:
    return DRIVER if DRIVER.is_file() else None


def missing() -> str:
    """What is missing, in words; empty if nothing is."""
    if server_programs() is None:
        return "PostgreSQL is not installed"
    return "" if driver_jar() is not None else "PostgreSQL's JDBC driver is not installed"


class JdbcPostgres:
    def __init__(self, folder: Path, spark: SparkSession) -> None:
        self._spark = spark
        with socket.socket() as probe:
            probe.bind((LOOPBACK, 0))
            port = probe.getsockname()[1]
        settings = (f"listen_addresses={LOOPBACK}", "shared_buffers=1GB", "max_wal_size=8GB")
        self.server = PostgresServer(folder, (*settings, "checkpoint_timeout=30min"), port)
        self._url = f"jdbc:postgresql://{LOOPBACK}:{port}/postgres"

    def make_table(self, name: str) -> None:
        columns = DEFINITION.format(double="double precision")
        self.server.sql(f"CREATE TABLE {name} (id bigint PRIMARY KEY, {columns})")

    def empty(self, name: str) -> None:
        self.server.sql(f"TRUNCATE {name}")

    def write(self, frame: DataFrame, name: str) -> None:
        """Rows of one statement go as one, and each task's as one transaction, durable when it ends."""
        options = {**self._at(name, "?reWriteBatchedInserts=true"), "batchsize": str(ROWS_AT_ONCE)}
        frame.write.format("jdbc").options(**options).mode("append").save()

    def read(self, name: str, rows: int) -> DataFrame:
        """Several key ranges at once: the only way to use more than one connection."""
        options = {
            **self._at(name),
            "fetchsize": str(ROWS_AT_ONCE),
            "partitionColumn": "id",
            "lowerBound": "0",
            "upperBound": str(rows),
            "numPartitions": str(READERS),
        }
        return self._spark.read.format("jdbc").options(**options).load()

    def _at(self, name: str, more: str = "") -> dict[str, str]:
        return {"driver": DRIVER_CLASS, "url": f"{self._url}{more}", "dbtable": name, "user": USER}

    def settle(self, name: str) -> None:
        """Runs the maintenance that follows a load now, so that it does not affect a read."""
        self.server.sql(f"VACUUM ANALYZE {name}")
        self.server.sql("CHECKPOINT")

    def spent(self) -> ResourcesSpent:
        return {**spark_spent(), "postgres": self.server.cpu_s()}

    def close(self) -> None:
        self.server.close()
