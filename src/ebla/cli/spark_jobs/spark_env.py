"""`ebla spark-env`: packs the packages that tasks need into an archive, for executors that lack them.

A virtual environment cannot be moved: its Python is a link into this machine. So the archive has a small `python`
script, which finds a Python of the right version and adds these packages to it.
"""

import importlib.metadata
import importlib.util
import io
import os
import re
import shlex
import sys
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer

from ebla.cli.figures import format_bytes
from ebla.cli.flags import JsonFlag
from ebla.cli.output import print_json, reporting_errors
from ebla.model.errors import Unavailable

REQUIRED_PACKAGES = ("pyarrow", "pandas", "numpy", "msgspec", "rocksdict")
"""What tasks import. The last one reads the files of a node on the same machine."""
OWN = ("ebla", "pyspark_ebla")
PYTHON = "bin/python"
VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"
PACKAGES = "packages"
EXCLUDED_PARTS = ("__pycache__", "tests", "include")
_NAME = re.compile(r"[A-Za-z0-9._-]+")

SCRIPT = """\
#!/bin/sh
# Runs the Python {version} of this machine with the packages beside this file.
here=$(cd "$(dirname "$0")/.." && pwd)
for one in "$EBLA_PYTHON" python{version} python3 /usr/local/bin/python{version} /usr/bin/python{version} {known}; do
  found=$([ -n "$one" ] && "$one" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)
  if [ "$found" = {version} ]; then
    PYTHONPATH="$here/{packages}${{PYTHONPATH:+:$PYTHONPATH}}" exec "$one" "$@"
  fi
done
echo "no Python {version} found on this machine; install it, or set EBLA_PYTHON to one" >&2
exit 127
"""


def pack(file: Path) -> list[str]:
    """Writes the archive, and returns its packages with versions. A temporary file is renamed at the end."""
    distributions = closure(REQUIRED_PACKAGES)
    fresh = file.with_name(f".{file.name}.new")
    try:
        with tarfile.open(fresh, "w:gz", compresslevel=3) as archive:
            for path, name in _files(distributions):
                archive.add(path, name, recursive=False)
            known = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
            script = SCRIPT.format(version=VERSION, packages=PACKAGES, known=known)
            _add_text(archive, PYTHON, script, 0o755)
            # Ebla reads its own version from package metadata, and no list of installed files is packed.
            release = importlib.metadata.version(OWN[0])
            about = f"Metadata-Version: 2.1\nName: {OWN[0]}\nVersion: {release}\n"
            _add_text(archive, f"{PACKAGES}/{OWN[0]}-{release}.dist-info/METADATA", about, 0o644)
        fresh.replace(file)
    finally:
        fresh.unlink(missing_ok=True)
    return [*(f"{one.name} {one.version}" for one in distributions), *OWN]


def closure(names: Sequence[str]) -> list[importlib.metadata.Distribution]:
    """These packages and all their dependencies, as installed here."""
    found: dict[str, importlib.metadata.Distribution] = {}
    queue = list(names)
    while queue:
        name = queue.pop(0)
        key = name.lower().replace("_", "-")
        if key in found:
            continue
        try:
            found[key] = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            raise Unavailable(f"the package {name} is not installed here", advice=f"pip install {name}") from None
        queue += needed(found[key].requires or ())
    return list(found.values())


def needed(requirements: Sequence[str]) -> list[str]:
    """Names of the packages that another one requires. Requirements of a platform or an extra are skipped unless they
    are installed here."""
    names = []
    for text in requirements:
        matched = _NAME.match(text)
        assert matched is not None
        plain = ";" not in text
        if plain or ("extra" not in text and _is_installed(matched[0])):
            names.append(matched[0])
    return names


def _is_installed(name: str) -> bool:
    try:
        importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _files(distributions: Sequence[importlib.metadata.Distribution]) -> Iterator[tuple[Path, str]]:
    for one in distributions:
        for file in one.files or ():
            path = Path(str(file.locate()))
            is_inside = ".." not in file.parts
            if is_inside and path.is_file() and not any(part in EXCLUDED_PARTS for part in file.parts):
                yield path, f"{PACKAGES}/{file}"
    for package in OWN:
        yield from _own_files(package)


def _own_files(package: str) -> Iterator[tuple[Path, str]]:
    """Our package may be an editable install, whose metadata lists no files."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise Unavailable(f"the package {package} is not installed here", advice="pip install ebla")
    root = Path(spec.origin).parent
    for path in sorted(root.rglob("*.py")):
        yield path, f"{PACKAGES}/{package}/{path.relative_to(root)}"


def _add_text(archive: tarfile.TarFile, name: str, text: str, mode: int) -> None:
    data = text.encode()
    entry = tarfile.TarInfo(name)
    entry.size = len(data)
    entry.mode = mode
    archive.addfile(entry, io.BytesIO(data))


FOLDER = "environment"
"""The name of the folder into which executors unpack the archive."""

app = typer.Typer()
"""Unnamed, so that its commands are added to the parent."""


@app.command("spark-env")
def spark_env(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The archive to write.")] = Path("ebla-spark-env.tar.gz"),
    as_json: JsonFlag = False,
) -> None:
    """Pack the packages of Spark tasks into an archive: pyarrow, pandas, numpy, msgspec, Ebla, and their dependencies.

    Spark ships it to its executors and unpacks it there; they need only a Python of this version.
    """
    with reporting_errors():
        names = pack(file)
        settings, environment = settings_for(file), environment_for(sys.executable)
        size_bytes = file.stat().st_size
        if as_json:
            configuration = {"settings": settings, "environment": environment}
            print_json({"file": str(file), "bytes": size_bytes, "packages": names, **configuration})
            return
        typer.echo(f"{file}: {format_bytes(size_bytes)}, with {', '.join(names)}")
        typer.echo(f"executors need Python {VERSION} and nothing else; before Spark is started:")
        for name, value in environment.items():
            typer.echo(f"  export {name}={shlex.quote(value)}")
        for name, value in settings.items():
            typer.echo(f"  spark-submit --conf {shlex.quote(f'{name}={value}')} …")


def settings_for(file: Path) -> dict[str, str]:
    return {"spark.archives": f"{file.absolute()}#{FOLDER}"}


def environment_for(driver: str) -> dict[str, str]:
    """Environment variables and not Spark settings: only `spark-submit` reads those settings. The driver keeps its own
    Python, which plans queries; tasks use the unpacked one."""
    return {"PYSPARK_DRIVER_PYTHON": driver, "PYSPARK_PYTHON": f"./{FOLDER}/{PYTHON}"}
