"""Finds a piece of code inside one function, independent of its layout, and replaces it.

The function is compared as `ast.unparse` prints it, token by token: comments, line breaks, indentation, kinds of
quotes, trailing commas and parentheses without meaning do not matter. So a mutation survives formatting and edits
elsewhere in the function, and needs an edit only when the code it breaks has changed.
"""

import ast
import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

TOKEN = re.compile(
    r"""
    (?P<space> \s+ | \\\n | \#[^\n]* )
  | (?P<string> [rbfuRBFU]{0,2} (?: \"\"\" (?:\\.|[^\\])*? \"\"\" | ''' (?:\\.|[^\\])*? '''
                                  | " (?:\\.|[^"\\\n])* " | ' (?:\\.|[^'\\\n])* ' ) )
  | (?P<word> (?: \d[\w.]* | \w+ ) )
  | (?P<mark> -> | := | \*\*=? | //=? | >>=? | <<=? | [-+*/%&|^@<>=!]= | \.\.\. | . )
    """,
    re.VERBOSE | re.DOTALL,
)

CLOSERS = (")", "]", "}")

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


class NoMatch(Exception):
    """The pattern does not fit the source, or the source with the replacement does not compile."""


@dataclass(frozen=True, slots=True)
class Token:
    text: str
    """Normalised: equal for tokens that mean the same."""
    start: int
    end: int


def tokens(code: str) -> list[Token]:
    found = [_token(match) for match in TOKEN.finditer(code) if match.lastgroup != "space"]
    after = [*(token.text for token in found[1:]), ""]
    return [token for token, follower in zip(found, after, strict=True) if token.text != "," or follower not in CLOSERS]


def _token(match: re.Match[str]) -> Token:
    text = match[0]
    if match.lastgroup == "string":
        try:
            text = ast.unparse(ast.parse(text, mode="eval"))
        except SyntaxError:
            pass
    return Token(text, match.start(), match.end())


def definitions(tree: ast.Module, name: str) -> list[ast.Module] | list[Definition]:
    """Functions and classes of that dotted name (`Class.method`, `function.inner`); the module itself for ""."""
    if not name:
        return [tree]
    return [node for dotted, node in _all_definitions(tree, "") if dotted == name]


def _all_definitions(node: ast.AST, outer: str) -> Iterator[tuple[str, Definition]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Definition):
            yield outer + child.name, child
            yield from _all_definitions(child, f"{outer}{child.name}.")
        else:
            yield from _all_definitions(child, outer)


def substitute(source: str, function: str, find: str, replace: str) -> str:
    """The module's source with `replace` in place of `find` in that function. Raises `NoMatch`."""
    nodes = definitions(_parsed(source), function)
    if not nodes:
        raise NoMatch(f"there is no {function}")
    hits = [(node, code, span) for node in nodes for code, span in _hits(node, find)]
    if len(hits) != 1:
        raise NoMatch(f"the code to break occurs {len(hits)} times in {function or 'the module'}, not once")
    ((node, code, span),) = hits
    # Nothing in place of a statement is "pass" where the block would be empty otherwise.
    for piece in (replace, "pass") if not replace.strip() else (replace,):
        changed = _exchange(code, span, piece)
        try:
            printed = ast.unparse(ast.parse(changed))
        except SyntaxError as error:
            problem = error
            continue
        if printed == code:
            raise NoMatch("it changes nothing that runs")
        return _splice(source, node, changed)
    raise NoMatch(f"the broken code does not compile: {problem}")


@cache
def _parsed(source: str) -> ast.Module:
    return ast.parse(source)


def _hits(node: ast.Module | Definition, find: str) -> list[tuple[str, tuple[int, int]]]:
    code = ast.unparse(node)
    inside = tokens(code)
    for form in _forms(find):
        wanted = [token.text for token in tokens(form)]
        places = [at for at in range(len(inside)) if _stands_at(inside, at, wanted)] if wanted else []
        if places:
            return [(code, (inside[at].start, inside[at + len(wanted) - 1].end)) for at in places]
    return []


def _forms(find: str) -> Iterator[str]:
    """As written, and as `ast.unparse` would print it, if it is whole statements or the head of one."""
    yield find
    text = textwrap.dedent(find).strip()
    for body in ("", " pass"):
        try:
            yield ast.unparse(ast.parse(text + body)).removesuffix("pass" if body else "").rstrip()
        except SyntaxError:
            continue


def _stands_at(inside: Sequence[Token], at: int, wanted: Sequence[str]) -> bool:
    return len(inside) - at >= len(wanted) and all(
        token.text == text for token, text in zip(inside[at : at + len(wanted)], wanted, strict=True)
    )


def _exchange(code: str, span: tuple[int, int], piece: str) -> str:
    """Lines of the piece after its first are indented as the line it begins in."""
    start, end = span
    line = code[code.rfind("\n", 0, start) + 1 : start]
    indent = line[: len(line) - len(line.lstrip())]
    lines = textwrap.dedent(piece).strip().split("\n")
    return code[:start] + f"\n{indent}".join(lines) + code[end:]


def _splice(source: str, node: ast.Module | Definition, code: str) -> str:
    if isinstance(node, ast.Module):
        return code
    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    lines = source.splitlines(keepends=True)
    indented = textwrap.indent(code, " " * node.col_offset) + "\n"
    return "".join([*lines[: first - 1], indented, *lines[node.end_lineno :]])
