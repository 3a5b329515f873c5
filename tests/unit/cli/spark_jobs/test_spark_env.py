"""An archive of packages that runs where it is unpacked."""

import os
import subprocess
import tarfile
from pathlib import Path

import pytest

from ebla.cli.spark_jobs import spark_env
from ebla.cli.spark_jobs.spark_env import PYTHON, closure, environment_for, needed, pack, settings_for
from ebla.model.errors import Unavailable


def test_what_is_needed_is_packed_and_extras_are_not() -> None:
    assert needed(["six", 'numpy>=1; python_version >= "3.11"', 'pytest; extra == "test"', "a-b (>=1)"]) == [
        "six", "numpy", "a-b",
    ]  # fmt: skip
    assert needed(['surely-not-installed; sys_platform == "win32"']) == []
    assert {"pandas", "numpy", "python-dateutil"} <= {one.name for one in closure(["pandas"])}


def test_what_is_not_installed_is_told() -> None:
    with pytest.raises(Unavailable, match="surely-not-installed"):
        closure(["surely-not-installed"])


def test_an_archive_runs_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With few packages, since packing all is slow; a test with Spark packs them all."""
    monkeypatch.setattr(spark_env, "REQUIRED_PACKAGES", ("msgspec",))
    file = tmp_path / "env.tar.gz"
    assert any(name.startswith("msgspec ") for name in pack(file))
    place = tmp_path / "unpacked"
    with tarfile.open(file) as archive:
        archive.extractall(place, filter="data")
    query = "import ebla.model.token, msgspec, importlib.metadata as m; print(msgspec.__file__, m.version('ebla'))"
    around = {"PATH": os.environ["PATH"]}
    ran = subprocess.run([place / PYTHON, "-c", query], capture_output=True, text=True, check=True, env=around)
    assert ran.stdout.startswith(str(place))
    assert list(tmp_path.glob(".*")) == []


def test_a_machine_without_this_python_is_told(tmp_path: Path) -> None:
    script = spark_env.SCRIPT.format(version="3.99", packages="packages", known="/nowhere/python")
    path = tmp_path / "python"
    path.write_text(script)
    path.chmod(0o755)
    ran = subprocess.run([path, "-c", ""], capture_output=True, text=True, check=False)
    assert ran.returncode == 127
    assert "no Python 3.99 found" in ran.stderr


def test_spark_is_told_where_it_is() -> None:
    settings = settings_for(Path("/x/env.tar.gz"))
    assert settings["spark.archives"] == "/x/env.tar.gz#environment"
    assert environment_for("/d/python") == {
        "PYSPARK_DRIVER_PYTHON": "/d/python", "PYSPARK_PYTHON": "./environment/bin/python",
    }  # fmt: skip
