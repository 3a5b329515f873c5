"""Which release of Ebla this is."""

from importlib.metadata import version

DATA_FORMAT = 2
"""Of a node's folder. 2: stores have ids, and the mark names them."""


def release() -> str:
    return version("ebla")
