"""What the storage library says went wrong, in our words."""

import errno
import os
from collections.abc import Callable
from typing import TypeVar

from ebla.model.errors import DiskFull, InternalError, Overloaded, Refused
from ebla.storage.layers.layer import LayerDamaged

T = TypeVar("T")


def translate_errors(folder: str, work: Callable[[], T]) -> T:
    try:
        return work()
    except Exception as failure:
        raise translated_error(failure, folder) from failure


def translated_error(failure: Exception, folder: str) -> Exception:
    """The library raises nothing but `Exception`; what happened is in the text."""
    if isinstance(failure, LayerDamaged):
        return failure
    text = str(failure)
    if os.strerror(errno.ENOSPC) in text or os.strerror(errno.EDQUOT) in text:
        return DiskFull(f"no space left for layer {folder} ({text})", advice="free space on its file system")
    if "Write stall" in text:
        return Overloaded(f"layer {folder} is still flushing earlier writes", advice="try again in a moment")
    if text.startswith("Corruption") or os.strerror(errno.ENOENT) in text:
        return LayerDamaged(folder, text)
    if "lock hold" in text or "While lock file" in text:
        return Refused(f"layer {folder} is open elsewhere ({text})", advice="stop the node that uses this folder")
    if text.startswith("IO error"):
        return OSError(errno.EIO, text, folder)
    return InternalError(f"layer {folder}: {text}")
