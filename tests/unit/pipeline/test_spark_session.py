"""What is told of a Spark that does not start."""

from pathlib import Path

import pytest
from py4j.protocol import Py4JNetworkError

from ebla.pipeline.java import Java, JavaPlace
from ebla.pipeline.spark_session import make_places, said_by
from ebla.pipeline.spark_settings import SparkOptions
from ebla.ports.transfers import PipelineUnavailable

JAVA = Java(JavaPlace.PATH, Path("/usr/bin/java"), 17)


class FromJava(Exception):
    """Like `Py4JJavaError`: its words are asked of the Java process."""

    def __init__(self, failure: Exception | None) -> None:
        super().__init__()
        self._failure = failure

    def __str__(self) -> str:
        if self._failure is not None:
            raise self._failure
        return "An error occurred.\n: java.io.IOException: no such folder\n\tat x.y(z.java:1)"


def test_an_error_of_javas_is_told_in_one_line() -> None:
    assert said_by(FromJava(None)) == "java.io.IOException: no such folder"


@pytest.mark.parametrize("failure", [ConnectionRefusedError(111, "Connection refused"), Py4JNetworkError("gone")])
def test_an_error_of_javas_after_its_end_is_told_too(failure: Exception) -> None:
    assert said_by(FromJava(failure)).startswith("FromJava, of which")


def test_the_folder_for_event_logs_is_made(tmp_path: Path) -> None:
    make_places(SparkOptions(tmp_path / "spark", event_log=str(tmp_path / "a" / "events")), JAVA)
    assert (tmp_path / "a" / "events").is_dir()


def test_where_it_cannot_be_made_the_option_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    options = SparkOptions(tmp_path / "spark", event_log=str(tmp_path / "file" / "events"))
    with pytest.raises(PipelineUnavailable, match=r"set pipeline\.event_log"):
        make_places(options, JAVA)
