"""A small file in which a command keeps how far it has come."""

import os
from pathlib import Path


def replace_file(path: Path, content: bytes) -> None:
    """The old content or the new, whatever happens; on disk when it returns."""
    fresh = path.with_name(f".{path.name}.new")
    with fresh.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
