"""Which release of Ebla this is."""

from importlib.metadata import version


def release() -> str:
    return version("ebla")
