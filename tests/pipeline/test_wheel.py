"""The wheel, installed into an empty environment, runs a cluster and a Spark shell that reads from it."""

import os
import pty
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from tests.cluster.conftest import QUICK, random_base_address
from tests.tidy.lock import pins

ROOT = Path(__file__).parents[2]
INSTALL_S = 900.0
"""Spark alone has 300 MB."""
COMMAND_S = 120.0
SHELL_S = 300.0
ROWS = 3


class Installed:
    """Commands of an environment that holds the wheel and what it depends on, run far from the sources."""

    def __init__(self, folder: Path) -> None:
        self._bin = folder / "environment" / "bin"
        self._home = folder / "home"
        self._home.mkdir()
        wheels = folder / "wheels"
        self._python(sys.executable, "-m", "venv", str(folder / "environment"))
        pip = (str(self._bin / "python"), "-m", "pip", "--disable-pip-version-check")
        self._python(*pip, "wheel", "-q", "--no-deps", "-w", str(wheels), str(ROOT))
        (wheel,) = wheels.iterdir()
        # Without hashes: pip would want one of the wheel too, which was built just now.
        versions = folder / "versions.txt"
        versions.write_text("\n".join(pins((ROOT / "constraints.txt").read_text())))
        self._python(*pip, "install", "-q", "-c", str(versions), str(wheel))

    @property
    def surroundings(self) -> Mapping[str, str]:
        """Without anything of the environment that runs the tests."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
        return {**kept, "PATH": f"{self._bin}:{os.environ['PATH']}", "HOME": str(self._home)}

    def _python(self, *command: str) -> None:
        done = subprocess.run(command, cwd=self._home, capture_output=True, text=True, timeout=INSTALL_S, check=False)
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"

    def ebla(self, *arguments: str) -> str:
        done = subprocess.run(
            [str(self._bin / "ebla"), *arguments],
            cwd=self._home,
            env=self.surroundings,
            capture_output=True,
            text=True,
            timeout=COMMAND_S,
            check=False,
        )
        assert done.returncode == 0, f"ebla {' '.join(arguments)}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def spark_shell(self, line: str, awaited: str, *arguments: str) -> str:
        """What `ebla spark` shows at a terminal after the line was typed, up to the awaited text."""
        outer, inner = pty.openpty()
        command = [str(self._bin / "ebla"), "spark", "--master", "local[1]", *arguments]
        shell = subprocess.Popen(
            command, cwd=self._home, env=self.surroundings, stdin=inner, stdout=inner, stderr=inner, text=True
        )
        os.close(inner)
        os.write(outer, f"{line}\nexit()\n".encode())
        shown = ""
        deadline = time.monotonic() + SHELL_S
        try:
            while awaited not in shown:
                assert time.monotonic() < deadline, shown
                try:
                    shown += os.read(outer, 65536).decode(errors="replace")
                except OSError:  # the shell has closed its end
                    break
        finally:
            shell.kill()
            shell.wait(60)
            os.close(outer)
        return shown


@pytest.fixture
def installed(tmp_path: Path) -> Iterator[Installed]:
    made = Installed(tmp_path)
    yield made
    made.ebla("down")


@pytest.mark.long
def test_the_wheel_runs_a_cluster_and_a_spark_shell(installed: Installed) -> None:
    settings = [flag for setting in QUICK for flag in ("--set", setting)]
    shape = ["--nodes", "1", "--shards", "1", "--base-address", random_base_address()]
    assert "node1" in installed.ebla("up", "--no-follow", *shape, *settings)
    installed.ebla("table", "create", "shop.orders", "id int PRIMARY KEY, total int")
    for number in range(ROWS):
        installed.ebla("row", "put", "shop.orders", f"id={number}", f"total={10 * number}")
    counting = 'print("orders", "=", table("shop.orders").count())'
    assert f"orders = {ROWS}" in installed.spark_shell(counting, f"orders = {ROWS}")
