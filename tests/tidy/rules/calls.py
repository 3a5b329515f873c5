"""Calls the product may not make: a seed could not replay them, or no task group would own them."""

import ast
from collections.abc import Iterable, Mapping

from tests.tidy.source import Source, dotted, imported_names

OUTSIDE_THE_PORTS = (
    "time", "random", "numpy.random", "secrets", "uuid.uuid1", "uuid.uuid4", "os.urandom", "os.getrandom",
    "datetime.datetime.now", "datetime.datetime.utcnow", "datetime.datetime.today", "datetime.date.today",
)  # fmt: skip
"""Each name bans everything below it as well."""

OUTSIDE_ALLOWED: Mapping[str, tuple[str, str]] = {
    "src/ebla/runtime/": ("", "real clocks and real chance are what it is for"),
    "src/ebla/bulk/workers/fork_server.py": ("time.monotonic", "a worker process has real time; none is simulated"),
    "src/ebla/cli/": ("", "a command talks to a person, in the person's time; nothing simulates it"),
    "src/ebla/source/": ("", "it runs in the driver and the tasks of a user's Spark; nothing simulates those"),
    "src/ebla/transfers/spark_worker.py": ("", "tasks run in Spark's own processes, which no seed can replay"),
    "src/ebla/pipeline/java_process.py": ("secrets.token_hex", "the name of a file that Spark's driver makes, once"),
    "src/ebla/sim/sandbox.py": ("", "it holds these functions to take them away"),
    "src/ebla/sim/rng.py": ("random.Random", "the seeded source itself"),
    "src/ebla/sim/scenario.py": ("time.process_time", "how long a run took on the CPU, printed after it ended"),
}
"""File or folder to the one name allowed there (empty: all names) and the reason."""

UNOWNED_TASKS_ALLOWED: Mapping[str, str] = {
    "src/ebla/sim/loop.py": "it is the event loop, which starts every task",
    "src/ebla/sim/world.py": "it holds the root task of each crash unit, to drop it like a dying machine",
}

TASK_GROUP_ENDINGS = ("group", "tasks")


def reaching_outside(sources: Iterable[Source], allowed: Mapping[str, tuple[str, str]] = OUTSIDE_ALLOWED) -> list[str]:
    """Time and randomness come through ports. Otherwise two runs of one seed differ, and a bug found once cannot be
    replayed. Naming the function counts as calling it."""
    complaints = []
    for source in sources:
        if not source.is_product:
            continue
        exceptions = [name for place, (name, _) in allowed.items() if source.path.startswith(place)]
        names = imported_names(source)
        beginnings = [node.value for node in ast.walk(source.tree) if isinstance(node, ast.Attribute)]
        for node in ast.walk(source.tree):
            if isinstance(node, ast.Name | ast.Attribute) and node not in beginnings:
                name = dotted(node, names)
                if _below(name, OUTSIDE_THE_PORTS) and "." in name and not _below(name, exceptions):
                    complaints.append(source.complaint(node.lineno, f"{name}: take it from a port"))
    return complaints


def _below(name: str, roots: Iterable[str]) -> bool:
    return any(root == "" or name == root or name.startswith(f"{root}.") for root in roots)


def unowned_tasks(sources: Iterable[Source], allowed: Mapping[str, str] = UNOWNED_TASKS_ALLOWED) -> list[str]:
    """A task without a group outlives its operation, and its error is lost. A group from another file is recognised by
    its name, which must end in `group` or `tasks`."""
    complaints = []
    for source in sources:
        if not source.is_product or source.path in allowed:
            continue
        groups = _group_names(source.tree)
        starts = [node for node in ast.walk(source.tree) if isinstance(node, ast.Call)]
        complaints += [
            source.complaint(node.lineno, f"{_last_name(node.func)} outside a TaskGroup")
            for node in starts
            if _last_name(node.func) in ("create_task", "ensure_future") and not _is_on_group(node.func, groups)
        ]
    return complaints


def _is_on_group(function: ast.expr, groups: set[str]) -> bool:
    if not isinstance(function, ast.Attribute) or function.attr != "create_task":
        return False
    owner = _last_name(function.value)
    return owner in groups or owner.endswith(TASK_GROUP_ENDINGS)


def _group_names(tree: ast.Module) -> set[str]:
    """Names that the file opens, creates or takes as a TaskGroup."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.withitem) and node.optional_vars is not None and _makes_group(node.context_expr):
            found.add(_last_name(node.optional_vars))
        elif isinstance(node, ast.Assign) and _makes_group(node.value):
            found.update(_last_name(target) for target in node.targets)
        elif isinstance(node, ast.AnnAssign) and "TaskGroup" in ast.unparse(node.annotation):
            found.add(_last_name(node.target))
        elif isinstance(node, ast.arg) and node.annotation is not None and "TaskGroup" in ast.unparse(node.annotation):
            found.add(node.arg)
    return found


def _makes_group(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and _last_name(node.func) == "TaskGroup"


def _last_name(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return node.attr
    return ""


def rebound_globals(sources: Iterable[Source]) -> list[str]:
    """All simulated nodes of a process share module state; real nodes share none."""
    complaints = []
    for source in sources:
        if source.is_product:
            rebinds = (node for node in ast.walk(source.tree) if isinstance(node, ast.Global))
            complaints += [source.complaint(node.lineno, f"global {', '.join(node.names)}") for node in rebinds]
    return complaints


RULES = (reaching_outside, unowned_tasks, rebound_globals)
"""Run on every Python file; they check those of the product."""
