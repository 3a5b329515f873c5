"""A pattern is found whatever the layout, in one function only, and exactly once."""

import ast
import textwrap

import pytest
from tests.mutations.pattern import NoMatch, substitute

SOURCE = textwrap.dedent(
    '''
    LIMIT = 3


    class Box:
        """What holds things."""

        size: int = 1

        async def put(self, thing: str, *, where: str = "top") -> tuple[int, str]:
            """Puts one."""
            if thing:  # not nothing
                await self._lock(
                    thing,
                    where,
                )
                self.count += 1
            return self.count, f"put {thing!r}"

        def take(self) -> int:
            self.count -= 1
            return self.count
    '''
)


def changed(function: str, find: str, replace: str) -> str:
    """What a mutation makes of the source, as `ast` prints it."""
    return ast.unparse(ast.parse(substitute(SOURCE, function, find, replace)))


def expected(old: str, new: str) -> str:
    return ast.unparse(ast.parse(SOURCE.replace(old, new)))


@pytest.mark.parametrize(
    "find",
    [
        "await self._lock(thing, where)",
        "await self._lock(\n    thing,  # a comment\n    where,\n)",
        "            await   self._lock( thing, where )\n",
    ],
    ids=["one-line", "lines", "spaces"],
)
def test_layout_does_not_matter(find: str) -> None:
    call = "await self._lock(\n                thing,\n                where,\n            )"
    assert changed("Box.put", find, "pass") == expected(call, "pass")


def test_kinds_of_quotes_and_parentheses_without_meaning_do_not_matter() -> None:
    for find in ("return self.count, f'put {thing!r}'", 'return (self.count, f"put {thing!r}")'):
        assert changed("Box.put", find, "return 0, thing") == expected(
            'return self.count, f"put {thing!r}"', "return 0, thing"
        )


def test_a_part_of_a_line_is_enough() -> None:
    assert changed("Box.put", 'where: str = "top"', 'where: str = "end"') == expected('"top"', '"end"')
    assert changed("Box.take", "-=", "+=") == expected("-=", "+=")


def test_the_head_of_a_statement_may_change_alone() -> None:
    assert changed("Box.put", "if thing:", "if True:") == expected("if thing:", "if True:")


def test_later_lines_of_the_replacement_follow_the_indentation_of_its_first() -> None:
    found = changed("Box.put", "self.count += 1", "if thing:\n    self.count += 2\nself.count += 1")
    lines = "if thing:\n                self.count += 2\n            self.count += 1"
    assert found == expected("self.count += 1", lines)


def test_nothing_in_place_of_a_statement_leaves_a_block_that_compiles() -> None:
    one = "def f():\n    g()\n"
    assert ast.unparse(ast.parse(substitute(one, "f", "g()", ""))) == "def f():\n    pass"


def test_classes_and_the_top_level_can_be_changed_too() -> None:
    assert changed("Box", "size: int = 1", "size: int = 2") == expected("size: int = 1", "size: int = 2")
    assert changed("", "LIMIT = 3", "LIMIT = 4") == expected("LIMIT = 3", "LIMIT = 4")


@pytest.mark.parametrize(
    ("function", "find", "complaint"),
    [
        ("Box.take", "self.count += 1", "occurs 0 times"),
        ("Box", "self.count", "occurs 4 times"),
        ("Box.find", "self.count", "there is no Box.find"),
        ("Box.take", "self.count -= 1  # really", "changes nothing"),
    ],
)
def test_what_does_not_fit_is_refused(function: str, find: str, complaint: str) -> None:
    with pytest.raises(NoMatch, match=complaint):
        substitute(SOURCE, function, find, "self.count -= 1")


def test_what_would_not_compile_is_refused() -> None:
    with pytest.raises(NoMatch, match="does not compile"):
        substitute(SOURCE, "Box.take", "-= 1", "-= (")
