"""Files, targets, modules and commands that a document names exist.

A guide that names a moved file or a renamed command fails its reader at the first step.
"""

import posixpath
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import typer.core
from tests.tidy.source import Source

from ebla.cli.commands import COMMANDS, load_command

FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"`([^`]+)`")
FILE = re.compile(r"[\w./-]+\.(?:py|md|txt)")
FOLDER = re.compile(r"(?:[\w-]+/)+")
TARGET = re.compile(r"\bmake ([a-z][a-zA-Z0-9-]*)")
MODULE = re.compile(r"\bpython -m ([\w.]+)")
COMMAND = re.compile(r"\bebla ([a-z][a-z0-9-]*)(?: ([a-z][a-z0-9|-]*))?")
LINK = re.compile(r"\]\(([^)#:]+)\)")


def _commands() -> dict[str, tuple[str, ...]]:
    found = {name: load_command(name) for name in COMMANDS}
    return {
        name: tuple(command.commands) if isinstance(command, typer.core.TyperGroup) else ()
        for name, command in found.items()
    }


KNOWN_COMMANDS: Mapping[str, tuple[str, ...]] = _commands()
"""Commands of `ebla`; a group with its own commands."""


def missing_files(sources: Sequence[Source]) -> list[str]:
    """A file is named by the end of its path. Folders are checked only in the guides at the root: elsewhere the name
    may mean a data folder."""
    paths = [f"/{source.path}" for source in sources]
    complaints = []
    for source in _documents(sources):
        for line, span in _spans(source):
            if FILE.fullmatch(span):
                found = any(path.endswith(f"/{span}") for path in paths)
            elif FOLDER.fullmatch(span) and "/" not in source.path:
                found = any(f"/{span}" in path for path in paths)
            else:
                continue
            if not found:
                complaints.append(source.complaint(line, f"there is no {span}"))
    return complaints


def broken_links(sources: Sequence[Source]) -> list[str]:
    paths = {source.path for source in sources}
    complaints = []
    for source in _documents(sources):
        for match in LINK.finditer(source.text):
            target = posixpath.normpath(posixpath.join(posixpath.dirname(source.path), match[1]))
            if target not in paths:
                complaints.append(source.complaint(_line(source, match.start()), f"there is no {target}"))
    return complaints


def missing_targets(sources: Sequence[Source]) -> list[str]:
    """Targets of the Makefile."""
    makefile = next((source.text for source in sources if source.path == "Makefile"), "")
    targets = set(re.findall(r"^([a-z][a-z0-9-]*):", makefile, re.MULTILINE)) | {"bench-NAME"}
    targets |= {f"bench-{_stem(source)}" for source in sources if source.path.startswith("benchmarks/bench_")}
    return _unknown(sources, TARGET, lambda match: match[1] in targets)


def missing_modules(sources: Sequence[Source]) -> list[str]:
    """`python -m` runs a module, or a package with a `__main__`."""
    modules = {source.module.removesuffix(".__main__") for source in sources if source.is_python}
    return _unknown(sources, MODULE, lambda match: match[1] in modules)


def missing_commands(sources: Sequence[Source], commands: Mapping[str, tuple[str, ...]] = KNOWN_COMMANDS) -> list[str]:
    def is_there(match: re.Match[str]) -> bool:
        if match[1] not in commands:
            return False
        inner = commands[match[1]]
        return not inner or match[2] is None or all(word in inner for word in match[2].split("|"))

    return _unknown(sources, COMMAND, is_there)


def _unknown(
    sources: Sequence[Source], pattern: re.Pattern[str], is_there: Callable[[re.Match[str]], bool]
) -> list[str]:
    return [
        source.complaint(line, f"there is no {match[0]}")
        for source in _documents(sources)
        for line, code in (*_spans(source), *_fences(source))
        for match in pattern.finditer(code)
        if not is_there(match)
    ]


def _documents(sources: Iterable[Source]) -> list[Source]:
    return [source for source in sources if source.path.endswith(".md")]


def _fences(source: Source) -> Iterator[tuple[int, str]]:
    """Each line of each fenced block."""
    for block in FENCED.finditer(source.text):
        first = _line(source, block.start())
        yield from ((first + number, line) for number, line in enumerate(block[0].splitlines()))


def _spans(source: Source) -> Iterator[tuple[int, str]]:
    """Code inside a sentence; it may continue on the next line."""
    prose = FENCED.sub(lambda block: "\n" * block[0].count("\n"), source.text)
    for match in SPAN.finditer(prose):
        yield prose.count("\n", 0, match.start()) + 1, " ".join(match[1].split())


def _line(source: Source, position: int) -> int:
    return source.text.count("\n", 0, position) + 1


def _stem(source: Source) -> str:
    return posixpath.basename(source.path).removeprefix("bench_").removesuffix(".py").replace("_", "-")


RULES = (missing_files, broken_links, missing_targets, missing_modules, missing_commands)
"""Run on every file: a document may name any of them."""
