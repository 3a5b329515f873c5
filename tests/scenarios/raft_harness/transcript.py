"""The transcript format: commands, a line of dashes, what they print, a blank line.

A block may hold several commands, one a line; a line that is no command belongs to the command before it. Lines that
only word a log message are no part of the contract and are dropped from both sides.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

_RULE = "----"
_LOG_LINE = re.compile(r"^\s*(DEBUG|INFO|WARN|ERROR|FATAL) ")
_ARGUMENT = re.compile(r"([\w-]+)=\(([^)]*)\)|([\w-]+)=(\S+)|(\S+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    name: str
    words: tuple[str, ...]
    options: dict[str, tuple[str, ...]]
    body: tuple[str, ...]

    def option(self, name: str, default: str) -> str:
        return self.options.get(name, (default,))[0]

    def flag(self, name: str) -> bool:
        return self.option(name, "false") == "true"

    def numbers(self) -> list[int]:
        return [int(word) for word in self.words]


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    line: int
    head: tuple[str, ...]
    """Comments and blank lines before it, kept for rewriting."""
    lines: tuple[str, ...]
    expected: str


Runner = Callable[[Command], str]


def parse(text: str) -> list[Block]:
    blocks: list[Block] = []
    lines = text.splitlines()
    at = 0
    while at < len(lines):
        head: list[str] = []
        while at < len(lines) and (not lines[at].strip() or lines[at].startswith("#")):
            head.append(lines[at])
            at += 1
        if at == len(lines):
            break
        start, command_lines = at, []
        while lines[at].strip() != _RULE:
            command_lines.append(lines[at])
            at += 1
        at, expected = _read_expected(lines, at + 1)
        blocks.append(Block(line=start + 1, head=tuple(head), lines=tuple(command_lines), expected="\n".join(expected)))
    return blocks


def _read_expected(lines: list[str], at: int) -> tuple[int, list[str]]:
    expected: list[str] = []
    if at < len(lines) and lines[at].strip() == _RULE:
        at += 1
        while [line.strip() for line in lines[at : at + 2]] != [_RULE, _RULE]:
            expected.append(lines[at])
            at += 1
        return at + 2, expected
    while at < len(lines) and lines[at].strip():
        expected.append(lines[at])
        at += 1
    return at, expected


def commands(block: Block, names: Iterable[str]) -> list[Command]:
    known = frozenset(names)
    grouped: list[list[str]] = []
    for line in block.lines:
        if not grouped or line.split(maxsplit=1)[0] in known:
            grouped.append([line])
        else:
            grouped[-1].append(line)
    return [_command(lines) for lines in grouped]


def _command(lines: list[str]) -> Command:
    name, _, rest = lines[0].partition(" ")
    words: list[str] = []
    options: dict[str, tuple[str, ...]] = {}
    for match in _ARGUMENT.finditer(rest):
        list_key, list_value, key, value, word = match.groups()
        if list_key is not None:
            options[list_key] = tuple(part.strip() for part in list_value.split(",") if part.strip())
        elif key is not None:
            options[key] = (value,)
        else:
            words.append(word)
    return Command(name=name, words=tuple(words), options=options, body=tuple(lines[1:]))


def contract(output: str) -> str:
    """What of an output must be the same on both sides."""
    kept = [line.rstrip() for line in output.splitlines() if not _LOG_LINE.match(line) and line.strip()]
    return "\n".join(line for line in kept if line not in ("ok", "ok (quiet)"))


def run_block(block: Block, names: Iterable[str], runner: Runner) -> str:
    printed = [runner(command) for command in commands(block, names)]
    return "".join(printed) or "ok\n"


def replay(path: Path, names: Iterable[str], runner: Runner) -> None:
    """Raises an AssertionError at the first block that prints something else."""
    for block in parse(path.read_text()):
        got = run_block(block, names, runner)
        where = f"{path.name}:{block.line}: {' / '.join(block.lines)}"
        assert contract(got) == contract(block.expected), (
            f"{where}\n--- expected\n{contract(block.expected)}\n--- got\n{contract(got)}"
        )


def rewritten(text: str, names: Iterable[str], runner: Runner) -> str:
    """The same transcript with what is printed today, for a person to read before it is kept."""
    parts: list[str] = []
    for block in parse(text):
        got = run_block(block, names, runner).rstrip("\n")
        parts.append("\n".join([*block.head, *block.lines, _RULE, got]))
    return "\n".join(parts) + "\n"
