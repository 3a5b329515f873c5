"""`ebla cqlsh`: Cassandra's shell against the cluster of this machine, installed when it is first wanted.

It lives in an environment of its own: it needs cassandra-driver, and that and scylla-driver, which Ebla itself needs,
both install a package named `cassandra`.
"""

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib import resources
from pathlib import Path
from typing import NoReturn

from ebla.cli.cluster.local_cluster import LocalNode
from ebla.model.errors import Unavailable
from ebla.options import ClientTls

Run = Callable[[Sequence[str]], int]
Say = Callable[[str], None]

MARK = ".ready"


def requirements() -> str:
    return resources.files("ebla.cli").joinpath("cqlsh_environment.txt").read_text("utf-8")


def default_environment() -> Path:
    """In the user's cache, named for what is in it: another version is another folder."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    return cache / "ebla" / f"cqlsh-{hashlib.sha256(requirements().encode()).hexdigest()[:12]}-py{version}"


def ensure_installed(environment: Path, run: Run, say: Say) -> Path:
    """The interpreter of the environment. One that was left half made has no mark, and is made again."""
    python, mark = environment / "bin" / "python", environment / MARK
    if mark.exists():
        return python
    say(f"installing cqlsh into {environment}, once …")
    environment.mkdir(parents=True, exist_ok=True)
    wanted = environment / "requirements.txt"
    wanted.write_text(requirements(), "utf-8")
    pip = (str(python), "-m", "pip", "--disable-pip-version-check")
    for step in (
        (sys.executable, "-m", "venv", str(environment)),
        (*pip, "install", "-q", "--progress-bar", "on", "-r", str(wanted)),
    ):
        if run(step):
            raise Unavailable(
                "cqlsh could not be installed; what went wrong stands above",
                advice="any cqlsh of Cassandra 4 or newer will do as well: cqlsh ADDRESS",
            )
    mark.touch()
    return python


def arguments_for(node: LocalNode, given: Sequence[str]) -> list[str]:
    """The node's address, unless the caller names one; TLS where the node wants it."""
    options = node.options
    arguments = list(given)
    if options.client_tls is ClientTls.ON and "--ssl" not in arguments:
        arguments.append("--ssl")
    return [*arguments, options.address, str(options.ports.cql)]


def cqlsh_process_environment(node: LocalNode) -> dict[str, str]:
    """What cqlsh reads from its environment: which authority the nodes' certificates are of."""
    if node.options.client_tls is ClientTls.OFF:
        return {}
    return {"SSL_CERTFILE": str(node.folder.tls / "authority.pem"), "SSL_VALIDATE": "true"}


def run_step(command: Sequence[str]) -> int:
    return subprocess.run(command, check=False).returncode  # noqa: S603  # the arguments are our own


def exec_cqlsh(python: Path, node: LocalNode, given: Sequence[str]) -> NoReturn:
    """This process goes on as cqlsh, which then has the terminal and its signals to itself."""
    command = [str(python), "-m", "cqlshlib", *arguments_for(node, given)]
    os.execve(command[0], command, {**os.environ, **cqlsh_process_environment(node)})  # noqa: S606  # the arguments are our own
