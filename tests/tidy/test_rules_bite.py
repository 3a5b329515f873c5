"""Each house rule complains about what it bans, and about nothing else."""

import textwrap
from collections.abc import Callable, Sequence
from functools import partial

import pytest
from tests.tidy.rules import (
    calls,
    dead_modules,
    dead_names,
    documents,
    imports,
    labels,
    leader_checks,
    lengths,
    membership,
    names,
    order,
    structs,
    words,
)
from tests.tidy.source import Source

PURE = "src/ebla/raft/sample.py"
SHELL = "src/ebla/control/sample.py"


def sample(text: str, path: str = SHELL) -> Source:
    return Source(path, textwrap.dedent(text))


def lines_of(rule: Callable[[Sequence[Source]], list[str]], source: Source) -> list[int]:
    """Line numbers of the rule's complaints."""
    return [int(complaint.split(":")[1]) for complaint in rule([source])]


def function_of(lines: int) -> str:
    return "def long():\n" + "    step()\n" * (lines - 1)


def test_long_functions() -> None:
    inside = "class A:\n" + textwrap.indent(function_of(71), "    ")
    assert lengths.long_functions([sample(function_of(70))]) == []
    assert lines_of(lengths.long_functions, sample(function_of(71))) == [1]
    assert "A.long has 71 lines" in lengths.long_functions([sample(inside)])[0]


def test_long_files() -> None:
    assert lengths.long_files([sample("x = 1\n" * 600)]) == []
    assert lines_of(lengths.long_files, sample("x = 1\n" * 601)) == [601]


def test_exceptions_only_shrink() -> None:
    place = f"{SHELL}::long"
    source = sample(function_of(90))
    assert lengths.long_functions([source], {place: 90}) == []
    assert lengths.long_functions([source], {place: 89}) != []
    assert lengths.loose_exceptions([source], {place: 90}) == []
    assert "lower its exception" in lengths.loose_exceptions([source], {place: 91})[0]
    assert "needs no exception" in lengths.loose_exceptions([sample(function_of(70))], {place: 90})[0]
    assert "needs no exception" in lengths.loose_exceptions([], {SHELL: 700})[0]


def test_private_words() -> None:
    text = (
        "class TransferDesk:\n  def folded(self, wish, table):\n    self.chance = told = 1\n    door = unfold(told)\n"
    )
    assert lines_of(names.private_words, sample(text)) == [1, 2, 2, 3, 3, 4]
    assert names.private_words([sample(text, "tests/unit/test_a.py")]) == []


def test_many_parameters() -> None:
    assert lines_of(lengths.many_parameters, sample("def f(a, b, c, d, e): ...")) == []
    assert lines_of(lengths.many_parameters, sample("def f(a, b, c, d, e, g): ...")) == [1]
    assert lines_of(lengths.many_parameters, sample("class A:\n  def f(self, a, b, c, d, e): ...")) == []
    assert lines_of(lengths.many_parameters, sample("def f(a, b, c, d, e, *, g, h, i): ...")) == []
    assert lines_of(lengths.many_parameters, sample("def f(a, b, c, d, e, *, g, h, i, j): ...")) == [1]
    assert lines_of(lengths.many_parameters, sample("@app.command()\ndef f(a, b, c, d, e, g): ...")) == []
    assert lines_of(lengths.many_parameters, sample("def test_f(a, b, c, d, e, g): ...", "tests/test_a.py")) == []


@pytest.mark.parametrize(
    ("path", "text", "bad"),
    [
        ("src/ebla/raft/utils.py", "", True),
        ("src/ebla/common/log.py", "", True),
        ("tests/unit/raft/raft_helpers.py", "", True),
        (SHELL, "class LeaseManager: ...", True),
        (SHELL, "class HTTPHandler: ...", True),
        (SHELL, "class Utilisation: ...", False),
        ("src/ebla/control/lease_server.py", "class Managed: ...", False),
    ],
)
def test_empty_names(path: str, text: str, bad: bool) -> None:
    assert bool(names.empty_names([Source(path, text)])) == bad


@pytest.mark.parametrize(
    "line",
    [
        "import asyncio",
        "import os.path",
        "from time import monotonic",
        "from ebla import observe",
        "from ebla.observe.events import Event",
        "from ..runtime import file_disk",
    ],
)
def test_impure_imports(line: str) -> None:
    assert lines_of(imports.impure_imports, sample(line, PURE)) == [1]
    assert lines_of(imports.impure_imports, sample(line, SHELL)) == []


def test_pure_imports() -> None:
    text = "import timeit_like\nfrom ebla.model import token\nfrom . import osmosis\n"
    assert lines_of(imports.impure_imports, sample(text, PURE)) == []


def test_hidden_imports() -> None:
    text = """\
        from typing import TYPE_CHECKING
        if TYPE_CHECKING:
            import os
        def f():
            def g():
                import sys
            from os import path
    """
    assert lines_of(imports.hidden_imports, sample(text)) == [6, 7]


def test_an_import_inside_a_function_with_its_reason_is_fine() -> None:
    text = """\
        def f():
            import pyspark  # only the driver has it
            # Loading numpy takes longer than the command itself.
            import numpy
            from numpy import random
    """
    assert lines_of(imports.hidden_imports, sample(text)) == []


def test_tests_of_tests() -> None:
    text = "from tests.unit.a.test_b import C\nfrom tests.unit.a.b_rig import C\nfrom tests.unit.testing import D\n"
    assert lines_of(imports.tests_of_tests, sample(text, "tests/unit/a/test_c.py")) == [1]


def test_imports_by_string() -> None:
    text = "import importlib\nimportlib.import_module('a.b')\nimportlib.import_module(f'a.{name}')\n"
    assert lines_of(imports.imports_by_string, sample(text)) == [2]


def test_repeated_classes() -> None:
    first, second = sample("class Plan: ...\nclass _Own: ..."), sample("class Plan: ...\nclass _Own: ...", PURE)
    assert "Plan is also in" in names.repeated_classes([first, second])[0]
    assert len(names.repeated_classes([first, second])) == 1
    assert names.repeated_classes([first, sample("class Plan: ...", "tests/sample.py")]) == []


@pytest.mark.parametrize(
    ("head", "is_wrong"),
    [
        ("import msgspec\nclass A(msgspec.Struct):", True),
        ("from msgspec import Struct\nclass A(Struct, frozen=True):", True),
        ("from msgspec import Struct\nclass A(Struct, kw_only=True):", False),
        ("from dataclasses import dataclass\n@dataclass\nclass A:", True),
        ("from dataclasses import dataclass\n@dataclass(slots=True, kw_only=True)\nclass A:", False),
        ("from msgspec import Struct\nclass Base(Struct):\n    z: int\nclass A(Base):", True),
        ("class A:", False),
    ],
)
def test_positional_structs(head: str, is_wrong: bool) -> None:
    four = "\n    a: int\n    b: int\n    c: int\n    d: int = 4\n"
    assert bool(structs.positional_structs([sample(head + four)])) is is_wrong


def test_three_fields_may_be_positional() -> None:
    text = "from msgspec import Struct\nclass A(Struct):\n    a: int\n    b: int\n    c: int\n"
    assert structs.positional_structs([sample(text)]) == []


def test_dead_names() -> None:
    code = """\
        LIMIT = 3
        UNUSED = 4
        def used(): return LIMIT
        def recursive(): return recursive()
        @app.command()
        def registered(): ...
        class Loose: ...
    """
    user = sample("from ebla.control.sample import used\nused()\n", "src/ebla/control/other.py")
    test = sample("UNUSED, recursive, Loose", "tests/unit/test_sample.py")
    sources = [sample(code), user, test]
    found = dead_names.dead_names(sources, {})
    assert [one.rpartition(" ")[2] for one in found] == ["UNUSED", "recursive", "Loose"]
    awaited = {"ebla.control.sample.UNUSED": "a reason", "ebla.control.sample.used": "another"}
    with_table = "\n".join(dead_names.dead_names(sources, awaited))
    assert "ebla.control.sample.used needs no entry" in with_table
    assert "UNUSED" not in with_table


@pytest.mark.parametrize(
    "text",
    [
        "import time\ntime.time()",
        "import time as t\nt.monotonic()",
        "from time import time\ntime()",
        "import random\nrandom.shuffle([])",
        "from random import Random\nRandom(1)",
        "import numpy as np\nnp.random.default_rng()",
        "import uuid\nuuid.uuid4()",
        "import datetime\ndatetime.datetime.now()",
        "from datetime import datetime\ndatetime.utcnow()",
        "import os\nos.urandom(3)",
        "import secrets\nsecrets.token_hex()",
        "import time\nclock = time.monotonic",
    ],
)
def test_reaching_outside(text: str) -> None:
    assert lines_of(calls.reaching_outside, sample(text)) == [2]
    assert lines_of(calls.reaching_outside, sample(text, "src/ebla/runtime/sample.py")) == []
    assert lines_of(calls.reaching_outside, sample(text, "tests/unit/sample.py")) == []


def test_what_only_looks_like_reaching_outside() -> None:
    text = "import uuid, datetime\nuuid.UUID(int=1)\ndatetime.timedelta(1)\nself.time.time()\nrandom()\ntime = 1\n"
    assert lines_of(calls.reaching_outside, sample(text)) == []


def test_a_place_may_reach_for_what_it_was_given_only() -> None:
    allowed = {SHELL: ("time.process_time", "a reason")}
    source = sample("import time\ntime.process_time()\ntime.time()\n")
    assert [complaint.split(":")[1] for complaint in calls.reaching_outside([source], allowed)] == ["3"]


def test_unowned_tasks() -> None:
    text = """\
        asyncio.create_task(f())
        loop.create_task(f())
        asyncio.get_running_loop().create_task(f())
        asyncio.ensure_future(f())
        create_task(f())
        self._tasks.create_task(f())
        task_group.create_task(f())
        async def run(given: asyncio.TaskGroup):
            given.create_task(f())
            async with asyncio.TaskGroup() as talks:
                talks.create_task(f())
    """
    assert lines_of(calls.unowned_tasks, sample(text)) == [1, 2, 3, 4, 5]
    assert lines_of(calls.unowned_tasks, sample(text, "src/ebla/sim/loop.py")) == []


def test_rebound_globals() -> None:
    text = "count = 0\ndef f():\n    global count\n    count += 1\n"
    assert lines_of(calls.rebound_globals, sample(text)) == [3]


@pytest.mark.parametrize(
    "line",
    [
        "for x in {1, 2}: ...",
        "for x in set(y): ...",
        "for x in frozenset(y) - z: ...",
        "for x in a.union(b): ...",
        "[x for x in {y for y in z}]",
        "{x: 1 for x in set(y)}",
        "list(set(y))",
        "next(iter(set(y)))",
        "', '.join({1})",
        "(*set(y), 1)",
        "max(set(y), key=f)",
        "def f(a: frozenset[int]):\n    return [x for x in a]",
        "class A:\n    voters: frozenset[int]\n    def f(self):\n        return tuple(self.voters)",
        "class A:\n  @property\n  def voters(self) -> set[int]: ...\n  def f(self):\n    for x in self.voters: ...",
    ],
)
def test_iterated_sets(line: str) -> None:
    assert len(order.iterated_sets([sample(line, PURE)])) == 1
    assert order.iterated_sets([sample(line, SHELL)]) == []


@pytest.mark.parametrize(
    "line",
    [
        "for x in sorted({1, 2}): ...",
        "for x in (1, 2): ...",
        "any(x for x in set(y))",
        "{x for x in set(y)}",
        "frozenset(x for x in set(y))",
        "max(set(y))",
        "len(set(y) & z)",
        "x in {1, 2}",
        "{*set(y), 1}",
        "def f(a: frozenset[int]): return 1 in a",
        "def f(a: set[int]): ...\ndef g(a: list[int]):\n    for x in a: ...",
    ],
)
def test_sets_without_their_order(line: str) -> None:
    assert order.iterated_sets([sample(line, PURE)]) == []


def test_identity_calls() -> None:
    assert lines_of(order.identity_calls, sample("hash(x)\nid(x)\nself.id(x)\nmurmur.hash(x)\n", PURE)) == [1, 2]
    assert lines_of(order.identity_calls, sample("hash(x)", SHELL)) == []


CODE = sample("# keeps INV-RAFT-1\n", "src/ebla/raft/log.py")
CHECKER = sample("# checks INV-RAFT-1\n", "src/ebla/sim/checkers/logs.py")
INVARIANTS = sample("# checks INV-RAFT-1\n", "src/ebla/raft/invariants.py")
TEST = sample("# tries INV-RAFT-1\n", "tests/unit/raft/test_log.py")
GUIDE = sample("INV-RAFT-1 holds.\n", "docs/guide.md")


def test_a_label_in_all_its_places() -> None:
    assert labels.lonely_labels([CODE, CHECKER, TEST, GUIDE]) == []
    assert labels.lonely_labels([CODE, INVARIANTS, TEST]) == []


def test_a_label_that_misses_one() -> None:
    assert "INV-RAFT-1 is in no checker" in labels.lonely_labels([CODE, TEST])[0]
    assert "INV-RAFT-1 is in no test" in labels.lonely_labels([CODE, CHECKER])[0]
    assert "INV-RAFT-1 is in no code" in labels.lonely_labels([CHECKER, TEST])[0]


def test_a_label_that_the_product_does_not_have() -> None:
    assert "not a promise" in labels.lonely_labels([TEST])[0]
    assert "not a promise" in labels.lonely_labels([GUIDE])[0]


def module(name: str, text: str = "") -> Source:
    return Source(f"src/{name.replace('.', '/')}.py", text)


def test_dead_modules() -> None:
    living = [
        module("ebla.__main__", "from ebla.raft import core"),
        module("ebla.raft.core", "from . import log\nimport ebla.model.token\n"),
        module("ebla.raft.log"),
        module("ebla.model.token"),
        module("ebla.raft.__init__", '"""A package."""'),
        module("ebla.sim.scenarios.register"),
    ]
    assert dead_modules.dead_modules(living, {}) == []
    only_tested = [module("ebla.raft.unused", "from ebla.raft import unused_too"), module("ebla.raft.unused_too")]
    test = Source("tests/unit/test_unused.py", "import ebla.raft.unused")
    complaints = dead_modules.dead_modules([*living, *only_tested, test], {})
    assert [complaint.split(":")[0] for complaint in complaints] == [source.path for source in only_tested]


def test_a_tool_lives_where_people_are_told_to_run_it() -> None:
    tool = module("ebla.topology.draw", 'if __name__ == "__main__":\n    main()\n')
    guide = Source("CONTRIBUTING.md", "run `python -m ebla.topology.draw`")
    assert len(dead_modules.dead_modules([tool], {})) == 1
    assert dead_modules.dead_modules([tool, guide], {}) == []


def test_awaited_modules_are_taken_from_the_table_in_time() -> None:
    early, entry = module("ebla.model.token"), module("ebla.__main__", "import ebla.model.token")
    awaited = {"ebla.model.token": "the shards"}
    assert dead_modules.dead_modules([early], awaited) == []
    assert "awaited no longer" in dead_modules.dead_modules([early, entry], awaited)[0]
    assert "not there" in dead_modules.dead_modules([], awaited)[0]


TREE = [
    Source("Makefile", "check: ready ## fast\n\tpytest\n"),
    module("ebla.sim.loop"),
    module("ebla.sim.__main__"),
    Source("benchmarks/bench_two_words.py", ""),
    Source("docs/operate.md", "See [the start](../README.md) and [no file](https://somewhere/else.md)."),
]


def document(text: str, path: str = "README.md") -> list[Source]:
    return [Source(path, textwrap.dedent(text)), *TREE]


def test_documents_that_name_what_is_there() -> None:
    text = """\
        Read `sim/loop.py`, `loop.py`, `src/ebla/sim/`, `operate.md`, `a/<b>.py` and [this](docs/operate.md).
        Run `make
        check`, `make bench-two-words`, `make bench-NAME`, `python -m ebla.sim --list`, and make what you want.

        ```
        make check     # and then
        python -m ebla.sim.loop
        ebla up
        ebla group0 get|put
        ```
    """
    for rule in documents.RULES:
        if rule is not documents.missing_commands:
            assert rule(document(text)) == []
    assert documents.missing_commands(document(text), {"up": (), "group0": ("get", "put")}) == []


@pytest.mark.parametrize(
    ("rule", "bad"),
    [
        (documents.missing_files, "`sim/gone.py`"),
        (documents.missing_files, "`oop.py`"),
        (documents.missing_files, "`sim/gone/`"),
        (documents.broken_links, "[this](operate.md)"),
        (documents.missing_targets, "`make\ngone`"),
        (documents.missing_targets, "```\nmake gone\n```"),
        (documents.missing_targets, "`make bench-gone`"),
        (documents.missing_modules, "`python -m ebla.gone`"),
        (documents.missing_commands, "`ebla gone`"),
        (documents.missing_commands, "`ebla group0 get|gone`"),
    ],
)
def test_documents_that_name_what_is_gone(rule: Callable[[Sequence[Source]], list[str]], bad: str) -> None:
    complaints = rule(document(f"Fine.\n\n{bad}\n"))
    assert len(complaints) == 1
    assert complaints[0].startswith("README.md:4" if bad.startswith("```") else "README.md:3")


@pytest.mark.parametrize(
    ("rule", "bad"),
    [
        (words.postponed_work, "x = 1  # TODO: more"),
        (words.postponed_work, "FIXME later"),
        (words.machine_paths, 'open("/home/me/x")'),
        (words.machine_paths, "cd /work/main"),
        (words.registry_hosts, "--index-url https://somewhere"),
        (words.registry_hosts, "msgspec @ https://registry.corp.net/msgspec.whl"),
        (words.registry_hosts, "https://me:secret@host/path"),
        (words.talk_about_writing, "written with an AI"),
        (words.talk_about_writing, "Co-authored-by: x"),
        (words.talk_about_writing, "as asked in issue 7"),
        (words.bare_ignores, "x = y  # type: ignore"),
        (words.bare_ignores, "x = y  # type: ignore[arg-type]"),
        (words.bare_ignores, "x = y  # noqa: S311"),
        (words.bare_ignores, "x = y  # noqa  # because"),
    ],
)
def test_words_without_a_place(rule: Callable[[Sequence[Source]], list[str]], bad: str) -> None:
    assert lines_of(rule, sample(f"fine = 1\n{bad}\n")) == [2]


def test_words_that_are_fine() -> None:
    text = """\
        # the lease agent repairs, maintains; todo lists of users; $HOME/home/x and {root}/work/x
        x = registry.metrics.counter  # see https://www.rfc-editor.org/rfc/rfc7519
        y = z  # type: ignore[arg-type]  # the stub is wrong
        y = z  # noqa: S311  # chance of a test
    """
    for rule in words.RULES:
        assert rule([sample(text)]) == []


def test_leader_checks() -> None:
    asks = sample("def f(group0):\n    return group0.leads\n")
    assert lines_of(partial(leader_checks.leader_checks, places={}), asks) == [2]
    assert leader_checks.leader_checks([asks], {asks.path: "harmless"}) == []
    assert "asks no more" in leader_checks.leader_checks([], {asks.path: "harmless"})[0]


def test_membership_entries() -> None:
    proposes = sample("async def f(client):\n    await client.change_members((), b'', 1)\n")
    assert lines_of(partial(membership.membership_entries, places={}), proposes) == [2]
    assert membership.membership_entries([proposes], {proposes.path: "the run"}) == []
    assert "no more" in membership.membership_entries([], {proposes.path: "the run"})[0]
