"""Breaks one module as it is imported. Python runs this file at start when its folder is on PYTHONPATH.

So the bug is in every process that a check starts, cluster nodes included, and the product has no switch for it.
Standard library only, and everything is read from one file whose path is in `EBLA_MUTATION_ORDER`. What became of the
order is left as files beside it: `applied` once the broken text was run, `broken` with the reason when it could not be.
"""

import importlib.abc
import importlib.machinery
import json
import os
import sys
import traceback
import types
from collections.abc import Sequence
from pathlib import Path

ORDER = os.environ.get("EBLA_MUTATION_ORDER", "")


class BreakingLoader(importlib.machinery.SourceFileLoader):
    """Loads the module from changed source, past any cached bytecode, and writes none."""

    def __init__(self, spec: importlib.machinery.ModuleSpec, order: dict[str, str], marks: Path) -> None:
        assert spec.origin is not None
        super().__init__(spec.name, spec.origin)
        self._order = order
        self._marks = marks

    def get_code(self, fullname: str) -> types.CodeType:
        assert fullname == self._order["module"]
        code = compile(self._order["source"], self.path, "exec", dont_inherit=True)
        assert isinstance(code, types.CodeType)
        return code

    def exec_module(self, module: types.ModuleType) -> None:
        try:
            super().exec_module(module)
        except BaseException:
            (self._marks / "broken").write_text(traceback.format_exc(limit=-3))
            raise
        (self._marks / "applied").touch()


class BreakingFinder(importlib.abc.MetaPathFinder):
    def __init__(self, order: dict[str, str], marks: Path) -> None:
        self._order = order
        self._marks = marks

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._order["module"]:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None:
            spec.loader = BreakingLoader(spec, self._order, self._marks)
        return spec


if ORDER:
    _path = Path(ORDER)
    sys.meta_path.insert(0, BreakingFinder(json.loads(_path.read_text()), _path.parent))
