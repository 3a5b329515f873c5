"""A stack as scans are told of it. By itself: it stands in messages, which every process of a node knows, and what
scans are made with is large."""

import msgspec

from ebla.model.token import TokenRange


class ScanStack(msgspec.Struct, frozen=True, array_like=True):
    """A stack of the checkpoint, its layers by folder, each with its range."""

    range: TokenRange
    layers: tuple[tuple[str, TokenRange], ...]
