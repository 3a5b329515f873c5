"""The settings of a user's Spark, and how its shell is started."""

import json
import os
import sys
from pathlib import Path

import pytest

from ebla.cli.cluster.local_cluster import LocalNode
from ebla.cli.spark_jobs import spark
from ebla.cli.spark_jobs.source_options import ClusterFlags, options_of_nodes, source_options, table_access_options
from ebla.cli.spark_jobs.user_spark import UserSpark, parse_setting, settings_for, user_spark
from ebla.model.errors import InvalidRequest
from ebla.options import Authenticator, ClientTls, NodeOptions

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


class _Running(LocalNode):
    def running_pid(self) -> int:
        return 1


def running(**options: object) -> LocalNode:
    return _Running("node1", Path("x"), NodeOptions(data="/d", address="127.9.9.1", **options))  # type: ignore[arg-type]  # names vary


def test_filters_are_pushed_down_wherever_it_runs() -> None:
    local, cluster = settings_for("local[2]", None), settings_for("spark://h:1", Path("a.jsa"))
    assert local[PUSHDOWN] == cluster[PUSHDOWN] == "true"
    assert local["spark.driver.host"] == "127.0.0.1"
    assert "spark.driver.host" not in cluster, "executors elsewhere must reach the driver"
    assert "a.jsa" in cluster["spark.driver.extraJavaOptions"]


def test_a_setting_of_the_user_wins(tmp_path: Path) -> None:
    around = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    found = user_spark("local[1]", [f"{PUSHDOWN}=false", "spark.x=a=b"], around, sys.executable)
    assert (found.settings[PUSHDOWN], found.settings["spark.x"]) == ("false", "a=b")
    assert Path(found.environment["JAVA_HOME"], "bin", "java").is_file()
    assert found.environment["PYSPARK_PYTHON"] == around.get("PYSPARK_PYTHON", sys.executable)


@pytest.mark.parametrize("text", ["spark.x", "x=1", ""])
def test_what_is_no_setting_is_told(text: str) -> None:
    with pytest.raises(InvalidRequest, match="no setting of Spark"):
        parse_setting(text)


def test_nodes_of_this_machine_are_the_contact() -> None:
    assert options_of_nodes([running()], ClusterFlags(data=Path("d"))) == {"contact": "127.9.9.1:9042"}
    with_tls = options_of_nodes([running(client_tls=ClientTls.ON)], ClusterFlags(data=Path("d")))
    assert with_tls == {"contact": "127.9.9.1:9042", "ssl": "true", "ssl.ca": "/d/tls/authority.pem"}
    with pytest.raises(InvalidRequest, match="--username"):
        options_of_nodes([running(authenticator=Authenticator.PASSWORD)], ClusterFlags(data=Path("d")))
    with pytest.raises(InvalidRequest, match="no node of d runs"):
        options_of_nodes([], ClusterFlags(data=Path("d")))


def test_a_cluster_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EBLA_PASSWORD", "secret")
    flags = ClusterFlags(data=Path("d"), contact="h:1,i:2", username="ann", tls_authority=Path("/ca.pem"))
    assert source_options(flags) == {
        "contact": "h:1,i:2", "ssl": "true", "ssl.ca": "/ca.pem", "username": "ann", "password": "secret",
    }  # fmt: skip
    with pytest.raises(InvalidRequest, match=r"KEYSPACE\.TABLE"):
        table_access_options({"contact": "h"}, "orders")


def test_a_password_is_not_printed(capsys: pytest.CaptureFixture[str]) -> None:
    found = UserSpark({PUSHDOWN: "true"}, {"JAVA_HOME": "/j"}, Path("/s"))
    options = {"contact": "h:1", "password": "secret"}
    spark.print_settings(found, options, as_json=False)
    spark.print_settings(found, options, as_json=True)
    printed = capsys.readouterr().out
    assert "secret" not in printed
    lines = printed.splitlines()
    assert lines[:3] == ["export JAVA_HOME=/j", f"{PUSHDOWN} true", '# .option("contact", "h:1")']
    assert json.loads(lines[3])["options"] == {"contact": "h:1"}


def test_the_shell_is_pyspark_with_these_settings() -> None:
    found = UserSpark({"spark.a": "1"}, {}, Path("/s"))
    command = spark.shell_command(found, ["--packages", "p"])
    assert command == ["/s/bin/pyspark", "--conf", "spark.a=1", "--packages", "p"]
    compile(spark.STARTUP, "startup", "exec")
