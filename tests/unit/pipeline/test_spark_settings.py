"""The settings and environment that Spark is started with."""

from pathlib import Path

import pytest

from ebla.pipeline.spark_settings import (
    SparkFolders,
    SparkOptions,
    java_flags,
    master_with_tries,
    secret_properties,
    spark_environment,
    spark_settings,
)

PLACES = SparkFolders(java_home=Path("/java"), spark_home=Path("/spark"), sockets=Path("/s"), work=Path("/w"))


def options(master: str = "local[*]", **more: object) -> SparkOptions:
    return SparkOptions(folder=Path("/data/spark"), master=master, **more)  # type: ignore[arg-type]  # each by its own type


@pytest.mark.parametrize(
    ("master", "result"),
    [
        ("local", "local[1,4]"),
        ("local[*]", "local[*,4]"),
        ("local[3]", "local[3,4]"),
        ("spark://a:7077", "spark://a:7077"),
    ],
)
def test_an_embedded_spark_tries_tasks_again(master: str, result: str) -> None:
    assert master_with_tries(options(master)) == result
    assert spark_settings(options(master), PLACES)["spark.task.maxFailures"] == "4"


@pytest.mark.parametrize("master", ["local[*]", "spark://a:7077"])
def test_only_the_loopback_is_listened_on_unless_told_otherwise(master: str) -> None:
    settings = spark_settings(options(master), PLACES)
    assert settings["spark.driver.bindAddress"] == settings["spark.driver.host"] == "127.0.0.1"
    assert settings["spark.ui.enabled"] == "false"
    assert spark_environment(options(master), PLACES, {})["SPARK_LOCAL_IP"] == "127.0.0.1"
    assert spark_settings(options(driver_host="10.0.0.1"), PLACES)["spark.driver.host"] == "10.0.0.1"


def test_only_the_embedded_one_has_the_quick_compiler_and_sockets_of_its_own() -> None:
    assert "-XX:TieredStopAtLevel=1" in java_flags(options(), PLACES)
    assert "-XX:TieredStopAtLevel=1" not in java_flags(options("spark://a:7077"), PLACES)
    key = "spark.python.unix.domain.socket.enabled"
    assert spark_settings(options(), PLACES)[key] == "true"
    assert key not in spark_settings(options("spark://a:7077"), PLACES)


def test_masters_of_a_cluster() -> None:
    assert options("spark://a:7077,b.c:8").masters == (("a", 7077), ("b.c", 8))
    assert options("local[2]").masters == ()


def test_pages_and_event_log_by_option() -> None:
    settings = spark_settings(options(user_interface=True, event_log="/logs"), PLACES)
    assert settings["spark.ui.enabled"] == "true"
    assert (settings["spark.eventLog.enabled"], settings["spark.eventLog.dir"]) == ("true", "/logs")


def test_further_settings_go_over_ours() -> None:
    settings = spark_settings(options(settings={"spark.executor.memory": "2g", "spark.log.level": "INFO"}), PLACES)
    assert (settings["spark.executor.memory"], settings["spark.log.level"]) == ("2g", "INFO")


def test_what_would_lead_spark_elsewhere_is_not_handed_on() -> None:
    around = {"PYSPARK_SUBMIT_ARGS": "--master yarn pyspark-shell", "SPARK_REMOTE": "sc://x", "HOME": "/h"}
    result = spark_environment(options(), PLACES, around | {"JAVA_HOME": "/other", "SPARK_HOME": "/other"})
    assert "PYSPARK_SUBMIT_ARGS" not in result
    assert "SPARK_REMOTE" not in result
    assert (result["HOME"], result["JAVA_HOME"], result["SPARK_HOME"]) == ("/h", "/java", "/spark")


def test_a_cluster_is_used_with_a_secret_and_encryption() -> None:
    wanted = {"spark.authenticate": "true", "spark.network.crypto.enabled": "true"}
    locked = spark_settings(options("spark://a:7077", secret_file=Path("/secret")), PLACES)
    assert wanted.items() <= locked.items()
    assert not any("secret" in f"{name}{value}" for name, value in locked.items())
    for other in (options("spark://a:7077", authenticate=False), options("local[2]")):
        assert not wanted.keys() & spark_settings(other, PLACES).keys()
    assert options("spark://a:7077", authenticate=False, secret_file=Path("/secret")).needs_secret
    assert secret_properties("a=b\\c#") == "spark.authenticate.secret=a=b\\\\c#\n"
