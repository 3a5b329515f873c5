"""Writes the hashes of pinned packages: `make lock`, after a version in one of the lists was changed.

A list gets the hashes of all files of each release, so that it holds for every platform and Python version. The index
is the one that pip uses; the lists do not name it.
"""

import os
import re
import ssl
import sys
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    canonicalize_name,
    parse_sdist_filename,
    parse_wheel_filename,
)
from packaging.version import Version

ROOT = Path(__file__).parents[2]
LISTS = (
    "build-constraints.txt",
    "constraints.txt",
    "src/ebla/cli/cqlsh_environment.txt",
    "tests/drivers/environment.txt",
)
INDEX_DEFAULT = "https://pypi.org/simple"
TIMEOUT_S = 60.0

_PIN = re.compile(r"(?P<name>[A-Za-z0-9._-]+)==(?P<version>[^\s;\\]+)")
_FILE = re.compile(r'href="[^"#]*?/?(?P<file>[^"/#]+)#sha256=(?P<hash>[0-9a-f]{64})"')


def files_of(page: str) -> Iterator[tuple[str, str]]:
    """Name and hash of each file on a page of an index (PEP 503)."""
    for match in _FILE.finditer(page):
        yield match["file"], match["hash"]


def release_hashes(files: Iterable[tuple[str, str]], version: str) -> list[str]:
    return sorted({found for name, found in files if _version_of(name) == Version(version)})


def _version_of(file: str) -> Version | None:
    """None for files that pip does not install, such as eggs and installers."""
    try:
        return parse_wheel_filename(file)[1] if file.endswith(".whl") else parse_sdist_filename(file)[1]
    except (InvalidWheelFilename, InvalidSdistFilename):
        return None


def pins(text: str) -> Iterator[str]:
    """The lines of a list without its hashes."""
    for line in text.splitlines():
        if not line.startswith("    --hash="):
            yield line.removesuffix(" \\")


def locked(lines: Iterable[str], fetch_page: Callable[[str], str]) -> Iterator[str]:
    for line in lines:
        pin = _PIN.fullmatch(line)
        if pin is None:
            yield line
            continue
        hashes = release_hashes(files_of(fetch_page(canonicalize_name(pin["name"]))), pin["version"])
        if not hashes:
            raise SystemExit(f"the index has no files with hashes for {line}")
        yield " \\\n".join([line, *(f"    --hash=sha256:{found}" for found in hashes)])


class FetchPage:
    def __init__(self) -> None:
        self._index = os.environ.get("PIP_INDEX_URL", INDEX_DEFAULT).rstrip("/")
        self._context = ssl.create_default_context(cafile=os.environ.get("PIP_CERT"))

    def __call__(self, name: str) -> str:
        url = f"{self._index}/{name}/"
        with urllib.request.urlopen(url, timeout=TIMEOUT_S, context=self._context) as answer:
            page: bytes = answer.read()
        return page.decode()


def main() -> None:
    for name in LISTS:
        path = ROOT / name
        path.write_text("\n".join(locked(pins(path.read_text()), FetchPage())) + "\n")
        sys.stdout.write(f"{name}: {path.read_text().count('--hash=')} hashes\n")


if __name__ == "__main__":
    main()
