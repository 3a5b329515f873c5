"""Bounds on functions, files and parameters.

Code that does not fit a screen is not read as a whole, and then it is changed by guess.
"""

import ast
from collections.abc import Callable, Iterable, Mapping

from tests.tidy.source import Source, functions

FUNCTION_LINES_MAX = 70
FILE_LINES_MAX = 600
POSITIONAL_MAX = 5
"""Arguments that a caller may pass by position: beyond five, two get swapped unnoticed."""
PARAMETERS_MAX = 8
"""Including keyword-only ones, which cannot be swapped; beyond eight they should be a struct."""

EXCEPTIONS: Mapping[str, int] = {}
"""`path` or `path::function` to the lines allowed there. The table may only shrink: an entry that is not needed, or
allows more than necessary, is a complaint too."""
EXCEPTIONS_MAX = 0


def long_functions(sources: Iterable[Source], exceptions: Mapping[str, int] = EXCEPTIONS) -> list[str]:
    complaints = []
    for source in sources:
        for name, node in functions(source):
            lines = _lines(node)
            allowed = exceptions.get(f"{source.path}::{name}", FUNCTION_LINES_MAX)
            if lines > allowed:
                complaints.append(source.complaint(node.lineno, f"{name} has {lines} lines, at most {allowed}"))
    return complaints


def long_files(sources: Iterable[Source], exceptions: Mapping[str, int] = EXCEPTIONS) -> list[str]:
    complaints = []
    for source in sources:
        lines = len(source.text.splitlines())
        allowed = exceptions.get(source.path, FILE_LINES_MAX)
        if lines > allowed:
            complaints.append(source.complaint(lines, f"the file has {lines} lines, at most {allowed}"))
    return complaints


def loose_exceptions(sources: Iterable[Source], exceptions: Mapping[str, int] = EXCEPTIONS) -> list[str]:
    actual: dict[str, int] = {}
    for source in sources:
        actual[source.path] = len(source.text.splitlines())
        actual |= {f"{source.path}::{name}": _lines(node) for name, node in functions(source)}
    complaints = []
    for place, allowed in exceptions.items():
        limit = FUNCTION_LINES_MAX if "::" in place else FILE_LINES_MAX
        if actual.get(place, 0) <= limit:
            complaints.append(f"{place} needs no exception any more")
        elif actual[place] < allowed:
            complaints.append(f"{place} has {actual[place]} lines now: lower its exception from {allowed}")
    return complaints


def many_parameters(sources: Iterable[Source]) -> list[str]:
    """Does not count `self` and `cls`, fixtures of a test (pytest passes them by name), and options of a CLI command
    (they are its interface)."""
    complaints = []
    for source in sources:
        for name, node in functions(source):
            if _is_test(source, node) or _is_command(node):
                continue
            positional = len(_positional(node))
            total = positional + len(node.args.kwonlyargs)
            if positional > POSITIONAL_MAX:
                text = f"{name} takes {positional} arguments by position, at most {POSITIONAL_MAX}; then a struct"
                complaints.append(source.complaint(node.lineno, text))
            elif total > PARAMETERS_MAX:
                text = f"{name} has {total} parameters, at most {PARAMETERS_MAX}; then a struct"
                complaints.append(source.complaint(node.lineno, text))
    return complaints


def _lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    assert node.end_lineno is not None
    return node.end_lineno - node.lineno + 1


def _positional(node: ast.FunctionDef | ast.AsyncFunctionDef) -> list[ast.arg]:
    arguments = [*node.args.posonlyargs, *node.args.args]
    if arguments and arguments[0].arg in ("self", "cls", "mcs"):
        return arguments[1:]
    return arguments


def _is_test(source: Source, node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return source.path.startswith("tests/") and node.name.startswith("test_")


def _is_command(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    def target(decorator: ast.expr) -> ast.expr:
        return decorator.func if isinstance(decorator, ast.Call) else decorator

    names = (ast.unparse(target(decorator)).rpartition(".")[2] for decorator in node.decorator_list)
    return any(name in ("command", "callback", "add_command") for name in names)


RULES: tuple[Callable[[Iterable[Source]], list[str]], ...] = (
    long_functions,
    long_files,
    loose_exceptions,
    many_parameters,
)
"""Run on every Python file."""
