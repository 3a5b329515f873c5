"""Processes that start for a piece of work do without pandas.

Arrow loads it, where it is there, at the first array that it makes: half of what such a start costs, for nothing.
"""

import sys
from functools import cache
from importlib.abc import MetaPathFinder


class _NoPandas(MetaPathFinder):
    def find_spec(self, fullname: str, _path: object, _target: object = None) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError("not loaded here", name=fullname)


@cache
def disable_pandas() -> None:
    """For this process, until it ends."""
    sys.meta_path.insert(0, _NoPandas())
