"""The user's Spark: finds Java, and chooses settings that suit reading and writing tables.

Nothing here imports PySpark, which is slow to load: other commands share the start-up of this process.
"""

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from ebla.cli.flags import environment_without_password
from ebla.model.errors import InvalidRequest, Unavailable
from ebla.pipeline.java import archive_path, default_archive_folder, find_java, make_java_home

MASTER_DEFAULT = "local[*]"
LOOPBACK = "127.0.0.1"

MasterFlag = Annotated[str, typer.Option("--master", metavar="URL", help="Where Spark runs tasks: spark://HOST:PORT.")]
ConfFlag = Annotated[
    list[str] | None,
    typer.Option("--conf", metavar="NAME=VALUE", help="A Spark setting; may be repeated."),
]


@dataclass(frozen=True, slots=True)
class UserSpark:
    settings: Mapping[str, str]
    environment: Mapping[str, str]
    """Environment variables to set before Spark starts."""
    home: Path


def user_spark(master: str, user_settings: Sequence[str], env: Mapping[str, str], python: str) -> UserSpark:
    """Raises `NoJava`, and `Unavailable` if Spark is missing."""
    home = spark_home()
    java = find_java("", env)
    cache = default_archive_folder(env)
    if cache is None:
        raise InvalidRequest("this user has no home folder", advice="set XDG_CACHE_HOME to a folder to write to")
    archive = archive_path(cache, java, home)
    settings = settings_for(master, archive if archive.is_file() else None) | dict(map(parse_setting, user_settings))
    environment = {
        "JAVA_HOME": str(make_java_home(java, cache.parent)),
        "PYSPARK_PYTHON": env.get("PYSPARK_PYTHON") or python,
        "SPARK_HOME": str(home),
    }
    if is_local(master):
        environment["SPARK_LOCAL_IP"] = LOOPBACK
    return UserSpark(settings, environment, home)


def settings_for(master: str, archive: Path | None) -> dict[str, str]:
    settings = {
        "spark.master": master,
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.python.filterPushdown.enabled": "true",
    }
    if archive is not None:
        settings["spark.driver.extraJavaOptions"] = f"-XX:SharedArchiveFile={archive} -Xshare:auto"
    if is_local(master):
        # On a loopback TCP socket each task waits 40 ms for its first bytes.
        settings["spark.python.unix.domain.socket.enabled"] = "true"
        settings |= {"spark.driver.bindAddress": LOOPBACK, "spark.driver.host": LOOPBACK}
    return settings


def is_local(master: str) -> bool:
    return master.startswith("local")


def parse_setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.startswith("spark."):
        raise InvalidRequest(f"{text!r} is no setting of Spark", advice="write it as --conf spark.NAME=VALUE")
    return name, value


def spark_home() -> Path:
    found = importlib.util.find_spec("pyspark")
    if found is None or found.origin is None:
        raise Unavailable("PySpark is not installed here", advice="pip install pyspark")
    return Path(found.origin).parent


def spark_process_environment(spark: UserSpark) -> dict[str, str]:
    """The environment of a process that starts Spark."""
    return {**environment_without_password(), **spark.environment}
