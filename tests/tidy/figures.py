"""`python -m tests.tidy.figures [CHECKOUT]`: the size and shape of the tree in figures.

Takes any checkout, also one of an older commit, so that before and after can be compared. The last lines count the
complaints of house rules about shapes (`--complaints` lists them).
"""

import argparse
import ast
import io
import re
import statistics
import sys
import tokenize
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath

from tests.tidy.rules import dead_names, imports, names, structs
from tests.tidy.source import ROOT, Source, functions, import_base, read_files

POSITIONAL_MANY = 7
FOLDER_FILES_MANY = 25
SMALL_FILE_LINES, SATELLITE_LINES = 50, 90
SHOWN = 10

RULES: Sequence[Callable[[Sequence[Source]], list[str]]] = (
    names.repeated_classes,
    imports.imports_by_string,
    imports.hidden_imports,
    imports.tests_of_tests,
    *structs.RULES,
    *dead_names.RULES,
)
"""Rules about shapes; an older checkout may break them."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.tidy.figures", description=__doc__)
    parser.add_argument("checkout", nargs="?", type=Path, default=ROOT)
    parser.add_argument("--complaints", action="store_true", help="list what the rules complain about")
    options = parser.parse_args(arguments)
    files = read_files(options.checkout)
    product = [source for source in files if source.is_product]
    for line in (
        *_sizes(files),
        *_functions(product),
        *_files(product),
        *_folders(product),
        *_shapes(product),
        *_satellites(product),
        *_journeys(files),
    ):
        print(line)
    for rule in RULES:
        complaints = rule([source for source in files if source.is_python])
        print(f"rule {rule.__name__}: {len(complaints)} complaints")
        if options.complaints:
            print("\n".join(f"  {one}" for one in complaints))
    return 0


def _sizes(files: Sequence[Source]) -> Iterator[str]:
    python = [source for source in files if source.is_python]
    yield "lines: files, lines, code, docstring and comment, blank"
    places = [("src", "src/"), ("  of it sim", "src/ebla/sim/"), ("benchmarks", "benchmarks/"), ("tests", "tests/")]
    folders = sorted({source.path.split("/")[1] for source in python if source.path.startswith("tests/")})
    places += [(f"  {folder}", f"tests/{folder}/") for folder in folders if "." not in folder]
    for title, prefix in places:
        inside = [source for source in python if source.path.startswith(prefix)]
        total, prose, blank = (sum(column) for column in zip(*(_lines(source) for source in inside), strict=True))
        share = f"{100 * prose / total:.1f} %"
        yield f"  {title:<14} {len(inside):5} {total:7} {total - prose - blank:7} {prose:6} ({share}) {blank:6}"


def _lines(source: Source) -> tuple[int, int, int]:
    """Counts all lines, lines with only a comment or docstring, and blank lines."""
    lines = source.text.splitlines()
    prose: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source.text).readline):
        if token.type == tokenize.COMMENT and lines[token.start[0] - 1].strip().startswith("#"):
            prose.add(token.start[0])
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            prose.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    blank = {number for number, line in enumerate(lines, start=1) if not line.strip()}
    return len(lines), len(prose - blank), len(blank)


def _functions(product: Sequence[Source]) -> Iterator[str]:
    found = [(_length(node), f"{source.path}::{name}") for source in product for name, node in functions(source)]
    asserts = sum(isinstance(node, ast.Assert) for source in product for node in ast.walk(source.tree))
    yield f"functions: {len(found)}, asserts {asserts}, per function {asserts / len(found):.2f}"
    pure = [source for source in product if source.is_pure]
    pure_asserts = sum(isinstance(node, ast.Assert) for source in pure for node in ast.walk(source.tree))
    yield f"  in pure packages: {pure_asserts / max(1, sum(len(functions(source)) for source in pure)):.2f}"
    yield f"  lines: {_spread([length for length, _ in found])}"
    yield "  longest: " + ", ".join(f"{length} {name}" for length, name in sorted(found, reverse=True)[:SHOWN])


def _files(product: Sequence[Source]) -> Iterator[str]:
    found = [(len(source.text.splitlines()), source.path) for source in product]
    small = sum(lines < SMALL_FILE_LINES for lines, _ in found)
    yield f"files: {len(found)}, {_spread([lines for lines, _ in found])}, {small} under {SMALL_FILE_LINES} lines"
    yield "  largest: " + ", ".join(f"{lines} {path}" for lines, path in sorted(found, reverse=True)[:SHOWN])


def _folders(product: Sequence[Source]) -> Iterator[str]:
    counts = Counter(str(PurePosixPath(source.path).parent).removeprefix("src/") for source in product)
    many = {folder: count for folder, count in counts.most_common() if count > FOLDER_FILES_MANY}
    yield f"folders: {len(counts)}, of them with more than {FOLDER_FILES_MANY} files: {many or 'none'}"
    packages = Counter(source.path.split("/")[2] for source in product if source.path.count("/") > 2)
    lines: Counter[str] = Counter()
    for source in product:
        if source.path.count("/") > 2:
            lines[source.path.split("/")[2]] += len(source.text.splitlines())
    yield "  packages (files, lines): " + ", ".join(
        f"{name} {packages[name]} {lines[name]}" for name in sorted(packages)
    )


def _shapes(product: Sequence[Source]) -> Iterator[str]:
    classes = Counter(
        node.name
        for source in product
        for node in source.tree.body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    repeated = {name: count for name, count in classes.most_common() if count > 1}
    yield f"classes: {sum(classes.values())} public, {len(repeated)} names in two or more modules"
    bags = Counter(
        word for name in classes for word in ("Parts", "Limits", "Setup", "Deps", "Config") if name.endswith(word)
    )
    yield "  called: " + ", ".join(f"{word} {count}" for word, count in sorted(bags.items()))
    calls = [node for source in product for node in ast.walk(source.tree) if _is_long_construction(node)]
    yield f"constructor calls with {POSITIONAL_MANY} or more values by position: {len(calls)}"
    pairs = [
        f"{source.path}:{argument.lineno} {argument.arg}"
        for source in product
        for _, node in functions(source)
        if not node.name.startswith("_")
        for argument in [*node.args.args, *node.args.kwonlyargs]
        if argument.annotation is not None and _is_anonymous_tuple(argument.annotation)
    ]
    yield f"parameters of public functions that are anonymous tuples: {len(pairs)}"


def _is_anonymous_tuple(annotation: ast.expr) -> bool:
    text = ast.unparse(annotation)
    return text.startswith("tuple[") and not text.endswith("...]") and "," in text


def _is_long_construction(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call) or len(node.args) < POSITIONAL_MANY:
        return False
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    return name.lstrip("_")[:1].isupper()


def _satellites(product: Sequence[Source]) -> Iterator[str]:
    """Modules with one importer, in the same folder: candidates for a merge."""
    importers: dict[str, set[str]] = {}
    modules = {source.module for source in product}
    for source in product:
        for node in ast.walk(source.tree):
            found = []
            if isinstance(node, ast.Import):
                found = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                base = import_base(source, node)
                found = [base, *(f"{base}.{alias.name}" for alias in node.names)]
            for name in found:
                if name in modules and name != source.module:
                    importers.setdefault(name, set()).add(source.module)
    lines = {source.module: len(source.text.splitlines()) for source in product}
    alone = [
        name
        for name, users in importers.items()
        if len(users) == 1 and next(iter(users)).rpartition(".")[0] == name.rpartition(".")[0]
    ]
    small = sorted(name for name in alone if lines[name] < SATELLITE_LINES)
    yield f"modules with one importer, in the same folder: {len(alone)}, under {SATELLITE_LINES} lines: {len(small)}"


def _journeys(files: Sequence[Source]) -> Iterator[str]:
    """Distinct files named in each traced path of `ARCHITECTURE.md`."""
    guide = next((source.text for source in files if source.path == "ARCHITECTURE.md"), "")
    yield "files per traced path of ARCHITECTURE.md:"
    for section in re.split(r"^## ", guide, flags=re.MULTILINE)[1:]:
        title, _, text = section.partition("\n")
        paths = set(re.findall(r"`((?:[\w-]+/)+[\w-]+\.py)`", text))
        if paths and not title.startswith(("Words", "The picture")):
            yield f"  {len(paths):3} {title}"


def _length(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def _spread(values: Iterable[int]) -> str:
    ordered = sorted(values)
    at = [ordered[min(len(ordered) - 1, int(len(ordered) * share))] for share in (0.5, 0.9, 0.99)]
    return f"mean {statistics.mean(ordered):.1f}, median {at[0]}, p90 {at[1]}, p99 {at[2]}, max {ordered[-1]}"


if __name__ == "__main__":
    sys.exit(main())
