"""Ships our code to executors that do not have it, inside the objects that Spark pickles.

An object for executors is pickled as a function, which travels by value, together with a zip of the pure Python that
tasks need. Where the same release is installed, that one is used. Elsewhere the zip is unpacked once per machine, into
a folder named by its content. Compiled packages (msgspec, numpy, pyarrow) must be installed.
"""

import hashlib
import importlib
import importlib.metadata
import importlib.util
import os
import shutil
import stat
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import ebla

REQUIRED_PACKAGES = ("numpy", "pyarrow", "msgspec")
PACKAGES = ("aio", "model", "ports", "journal", "observe", "storage", "transfers", "wire", "cql", "source")
"""What tasks import, with everything that it imports."""
FRONT_PACKAGE = "pyspark_ebla"
COMPRESSION_LEVEL = 6

ReduceValue = tuple[Callable[..., object], tuple[object, ...]]


def ship(module: str, name: str, *arguments: object) -> ReduceValue:
    """The value of `__reduce__` for an object that is unpickled as `module.name(*arguments)`."""
    return _carrier(), (_code(), module, name, arguments)


@cache
def _code() -> tuple[str, str, bytes]:
    """One object for everything that is pickled together, so that it is sent once."""
    return importlib.metadata.version("ebla"), _content_hash(), _archive()


def _carrier() -> Callable[..., object]:
    """A nested function is pickled by value, because no other Python could import it by name. It must not use anything
    of this package."""
    needed, folder_of = REQUIRED_PACKAGES, _unpacker(_private_root())

    def unpack_and_make(code: tuple[str, str, bytes], module: str, name: str, arguments: tuple[Any, ...]) -> object:
        missing = [package for package in needed if importlib.util.find_spec(package) is None]
        if missing:
            raise ImportError(
                f"the Python of this Spark executor, {sys.executable}, lacks {', '.join(missing)}; format('ebla') "
                f"needs it: `pip install {' '.join(missing)}` there, or give Spark an environment packed by "
                "`ebla spark-env`"
            )
        folder = folder_of(*code)
        if folder is not None and folder not in sys.path:
            for known in [one for one in sys.modules if one.partition(".")[0] in ("ebla", "pyspark_ebla")]:
                del sys.modules[known]
            sys.path.insert(0, folder)
            importlib.invalidate_caches()
        return getattr(importlib.import_module(module), name)(*arguments)

    return unpack_and_make


def _private_root() -> Callable[[], str | None]:
    def private_root() -> str | None:
        """The folder that all processes of this user share; None if it is not safe. Anyone can create a file or a link
        of this name in the temporary directory, and what is in the folder is executed."""
        root = os.path.join(tempfile.gettempdir(), f"ebla-shipped-{os.getuid()}")
        try:
            os.mkdir(root, 0o700)
        except FileExistsError:
            pass  # by us or by another
        known = os.lstat(root)
        is_safe = stat.S_ISDIR(known.st_mode) and known.st_uid == os.getuid() and stat.S_IMODE(known.st_mode) == 0o700
        return root if is_safe else None

    return private_root


def _unpacker(private_root: Callable[[], str | None]) -> Callable[[str, str, bytes], str | None]:
    def unpacked(release: str, content: str, archive: bytes) -> str | None:
        """The folder it is unpacked in; None where the same release is installed."""
        loaded = [one for one in sys.path if os.path.basename(one) == content]
        if loaded:
            return loaded[0]
        try:
            if importlib.metadata.version("ebla") == release:
                return None
        except importlib.metadata.PackageNotFoundError:
            pass  # the usual case on other people's executors
        root = private_root() or tempfile.mkdtemp(prefix="ebla-shipped-")
        folder = os.path.join(root, content)
        if not os.path.isdir(folder):
            fresh = tempfile.mkdtemp(dir=root)
            packed = os.path.join(fresh, "code.zip")
            with open(packed, "wb") as writing:
                writing.write(archive)
            with zipfile.ZipFile(packed) as reading:
                reading.extractall(os.path.join(fresh, "code"))
            try:
                os.rename(os.path.join(fresh, "code"), folder)
            except OSError:
                if not os.path.isdir(folder):  # else another worker has unpacked the same
                    raise
            shutil.rmtree(fresh, ignore_errors=True)
        return folder

    return unpacked


# ---- the zip


@cache
def _content_hash() -> str:
    """Changes with any file. Computed from sizes and times: reading all files for each query would take longer than
    many queries."""
    found = hashlib.sha256()
    for name, path in _files():
        known = path.stat()
        found.update(f"{name} {known.st_size} {known.st_mtime_ns}\n".encode())
    return found.hexdigest()[:24]


@cache
def _archive() -> bytes:
    """Cached on disk: Spark plans each query in a new process."""
    root = _private_root()()
    kept = None if root is None else Path(root, f"{_content_hash()}.zip")
    if kept is not None and kept.exists():
        return kept.read_bytes()
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder, "code.zip")
        _pack(made)
        data = made.read_bytes()
        if kept is not None:
            whole = kept.with_name(f"{kept.name}.{os.getpid()}")
            whole.write_bytes(data)
            whole.replace(kept)
    return data


def _pack(made: Path) -> None:
    release = importlib.metadata.version("ebla")
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED, compresslevel=COMPRESSION_LEVEL) as archive:
        for name, path in _files():
            archive.writestr(name, path.read_bytes())
        # So that the shipped code can look up its own version.
        about = f"Metadata-Version: 2.1\nName: ebla\nVersion: {release}\n"
        archive.writestr(f"ebla-{release}.dist-info/METADATA", about)


def _files() -> Iterator[tuple[str, Path]]:
    """With their names in the zip, in a fixed order."""
    root = Path(next(iter(ebla.__path__)))
    for path in sorted(root.glob("*.py")):
        yield f"ebla/{path.name}", path
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            yield f"ebla/{path.relative_to(root)}", path
    front = importlib.util.find_spec(FRONT_PACKAGE)
    assert front is not None
    assert front.origin is not None
    yield f"{FRONT_PACKAGE}/__init__.py", Path(front.origin)
