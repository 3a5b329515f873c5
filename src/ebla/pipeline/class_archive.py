"""Archives of the classes that Spark's driver loads: mapped instead of read and checked, they halve a start's time.

One is made once for a Java and a Spark, by `python -m ebla.pipeline.train_classes` at the lowest priority, and kept in
a folder that all nodes of a machine share. Java looks by itself whether it fits, and goes on without where it does not.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path

from ebla.pipeline.java import Java


def default_archive_folder(environment: Mapping[str, str]) -> Path | None:
    """Where a user's programs keep what can be made again; None where the user has no such place."""
    if cache := environment.get("XDG_CACHE_HOME", ""):
        return Path(cache, "ebla", "spark-classes")
    home = environment.get("HOME", "")
    return Path(home, ".cache", "ebla", "spark-classes") if home else None


def archive_path(folder: Path, java: Java, spark_home: Path) -> Path:
    """Named after all that it depends on: made for another Java or Spark, it would be refused at each start, and never
    made anew."""
    jars = sorted((spark_home / "jars").glob("spark-core_*.jar"))
    stamps = [f"{jar.name} {jar.stat().st_mtime_ns}" for jar in jars]
    program = java.program.resolve()
    facts = [str(program), str(program.stat().st_mtime_ns), str(java.version), str(spark_home), *stamps]
    return folder / f"{hashlib.sha256(chr(0).join(facts).encode()).hexdigest()[:24]}.jsa"
