"""From a CSV file to rows that an application reads over CQL, step by step, as one would in a notebook.

    ebla up --no-follow                          # a cluster on this machine, if there is none
    python examples/csv_to_served_rows.py        # [ADDRESS[:PORT]], 127.0.0.1:9042 unless given

Each step prints what it found. Each run starts from the beginning.
"""

# %% Where things are
import os
import sys
import tempfile
from pathlib import Path

from cassandra.cluster import Cluster
from pyspark.sql import SparkSession
from pyspark.sql import functions as fn

contact = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9042"
address, _, port = contact.partition(":")

# %% A CSV file with one trip of a rented bicycle per line
lines = ["bike,started,from,to,minutes"]
for number in range(20_000):
    bike, place = number % 250, number * 7919 % 40
    day, hour, minute = 1 + number % 28, number // 28 % 24, number % 60
    minutes = "" if number % 501 == 0 else str(3 + number % 57)  # some were never brought back
    lines.append(
        f"{bike},2026-03-{day:02} {hour:02}:{minute:02}:00,station {place},station {(place + 3) % 40},{minutes}"
    )
csv = Path(tempfile.mkdtemp(), "trips.csv")
csv.write_text("\n".join(lines))
print(f"{csv}: {len(lines) - 1} trips")

# %% Tables for the questions that the application has
cql = Cluster([address], port=int(port or 9042)).connect()
cql.execute("CREATE KEYSPACE IF NOT EXISTS bikes WITH replication = {'class': 'NetworkTopologyStrategy', 'dc1': 1}")
cql.execute("DROP TABLE IF EXISTS bikes.trips")
cql.execute("DROP TABLE IF EXISTS bikes.stations")
# "the last trips of a bike": one partition a bike, the newest first
cql.execute(
    "CREATE TABLE bikes.trips (bike int, started timestamp, origin text, goal text, minutes int, "
    "PRIMARY KEY (bike, started)) WITH CLUSTERING ORDER BY (started DESC)"
)
# "how a station does": counted by Spark, served by key
cql.execute("CREATE TABLE bikes.stations (station text PRIMARY KEY, departures bigint, mean_minutes double)")

# %% Spark, with this Python for its tasks
os.environ["PYSPARK_PYTHON"] = sys.executable
spark = (
    SparkSession.builder.master("local[2]")
    .appName("csv to served rows")
    .config("spark.sql.session.timeZone", "UTC")
    .config("spark.sql.python.filterPushdown.enabled", "true")
    .config("spark.ui.enabled", "false")
    .getOrCreate()
)
cluster = {"contact": contact, "keyspace": "bikes"}

# %% The file, with types
trips = (
    spark.read.csv(str(csv), header=True, schema="bike int, started timestamp, from string, to string, minutes int")
    .withColumnsRenamed({"from": "origin", "to": "goal"})
    .dropDuplicates(["bike", "started"])  # the table's key: of two such lines one counts, and we say which
)
print(f"{trips.count()} trips with keys of their own")

# %% Into the table. The job has a name: if this is interrupted, the same again is safe
trips.write.format("ebla").options(**cluster, table="trips", job=f"trips-{csv.parent.name}").mode("append").save()

# %% The application reads it at once, over CQL
for row in cql.execute("SELECT started, origin, goal, minutes FROM bikes.trips WHERE bike = 7 LIMIT 3"):
    print(f"bike 7: {row.started:%d %b %H:%M}  {row.origin} to {row.goal}  {row.minutes or 'never back'}")

# %% Back in Spark: the table as it is served, counted, and written for the next question
served = spark.read.format("ebla").options(**cluster, table="trips", columns="origin,minutes").load()
stations = served.groupBy(fn.col("origin").alias("station")).agg(
    fn.count("*").alias("departures"), fn.mean("minutes").alias("mean_minutes")
)
stations.write.format("ebla").options(**cluster, table="stations").mode("append").save()

# %% Served by key
found = cql.execute("SELECT * FROM bikes.stations WHERE station = 'station 12'").one()
print(f"{found.station}: {found.departures} departures, {found.mean_minutes:.1f} minutes on average")

spark.stop()
cql.cluster.shutdown()
