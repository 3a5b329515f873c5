"""An archive of installed packages that runs wherever it is unpacked, on a Python that is there.

A virtual environment cannot be moved: its Python is a link to one of this machine. So the archive has a small `python`
of its own, which looks for one of the right version and gives it these packages.
"""

import importlib.metadata
import importlib.util
import io
import os
import re
import sys
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from ebla.model.errors import Unavailable

REQUIRED_PACKAGES = ("pyarrow", "pandas", "numpy", "msgspec", "rocksdict")
"""What tasks import; the last one for the files of a node on the same machine."""
OWN = ("ebla", "pyspark_ebla")
PYTHON = "bin/python"
VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"
PACKAGES = "packages"
EXCLUDED_PARTS = ("__pycache__", "tests", "include")
_NAME = re.compile(r"[A-Za-z0-9._-]+")

SCRIPT = """\
#!/bin/sh
# Runs the Python {version} of this machine with the packages that stand beside this file.
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
    """What is in it, with versions. Written beside its place first: half an archive is none."""
    distributions = closure(REQUIRED_PACKAGES)
    fresh = file.with_name(f".{file.name}.new")
    try:
        with tarfile.open(fresh, "w:gz", compresslevel=3) as archive:
            for path, name in _files(distributions):
                archive.add(path, name, recursive=False)
            known = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
            script = SCRIPT.format(version=VERSION, packages=PACKAGES, known=known)
            _add_text(archive, PYTHON, script, 0o755)
            # Its version is asked for by name, and no list of installed files is packed.
            release = importlib.metadata.version(OWN[0])
            about = f"Metadata-Version: 2.1\nName: {OWN[0]}\nVersion: {release}\n"
            _add_text(archive, f"{PACKAGES}/{OWN[0]}-{release}.dist-info/METADATA", about, 0o644)
        fresh.replace(file)
    finally:
        fresh.unlink(missing_ok=True)
    return [*(f"{one.name} {one.version}" for one in distributions), *OWN]


def closure(wanted: Sequence[str]) -> list[importlib.metadata.Distribution]:
    """These and all that they need here."""
    found: dict[str, importlib.metadata.Distribution] = {}
    waiting = list(wanted)
    while waiting:
        name = waiting.pop(0)
        key = name.lower().replace("_", "-")
        if key in found:
            continue
        try:
            found[key] = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            raise Unavailable(f"the package {name} is not installed here", advice=f"pip install {name}") from None
        waiting += needed(found[key].requires or ())
    return list(found.values())


def needed(requirements: Sequence[str]) -> list[str]:
    """Names of packages without which another does not work. What depends on a platform or an extra is left out if it
    is not installed here either."""
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
    """Ours may be installed by a link to its source, of which its list of files knows nothing."""
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
