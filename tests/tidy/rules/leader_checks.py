"""Every place that asks whether this node is the Raft leader.

A node that was paused or cut off believes that it leads for a while after another has taken over. What must run once in
the cluster is an activity, which is fenced by leases. A place that asks Raft alone needs a reason.
"""

import ast
from collections.abc import Iterable, Mapping

from tests.tidy.source import Source

ASKS = ("leads", "is_leader")
FREE = ("src/ebla/raft/", "src/ebla/leadership/", "src/ebla/control/raft/", "src/ebla/sim/")

PLACES: Mapping[str, str] = {
    "src/ebla/client/leadership_view.py": "shows what the nodes report",
    "src/ebla/cli/cluster/operations.py": "shows what the node reports",
    "src/ebla/cli/cluster/status_details.py": "shows what the nodes report",
    "src/ebla/client/cluster_view.py": "shows what the nodes report",
    "src/ebla/control/coordinator/coordinator.py": "asks for the activity, which then is fenced",
    "src/ebla/control/group0/client.py": "chooses where a proposal is sent; Raft itself decides what is committed",
    "src/ebla/control/group0/node.py": "defines `leads` for the others",
    "src/ebla/control/group0/service.py": "refuses a transfer of leadership elsewhere; Raft decides",
    "src/ebla/control/leadership/leadership_node.py": "starts and stops renewal",
    "src/ebla/cli/cluster/failover.py": "shows who has answered",
    "src/ebla/control/operations/failover.py": "evaluates; what it excludes is an activity, which then is fenced",
    "src/ebla/control/operations/janitor.py": "asks for the activity, which then is fenced",
    "src/ebla/control/operations/operation_service.py": "chooses which node runs it, as an activity",
    "src/ebla/control/settings/cluster.py": "passes it on to the other parts of the settings",
    "src/ebla/control/settings/purger.py": "asks for the activity, which then is fenced",
    "src/ebla/control/settings/service.py": "chooses which node answers an operator",
    "src/ebla/control/settings/settings_node.py": "tidies keys of removed nodes: correct whoever does it",
    "src/ebla/node/control_process.py": "starts the pipeline, which acts only under a permit",
    "src/ebla/settings_store/node_store.py": "decides from what it is told",
}
"""With what makes each of them harmless."""


def leader_checks(sources: Iterable[Source], places: Mapping[str, str] = PLACES) -> list[str]:
    """Run what must run once as an activity (`docs/leadership.md`); or list the place with its reason."""
    complaints, asking = [], set()
    for source in sources:
        if not source.is_product or source.path.startswith(FREE):
            continue
        for node in ast.walk(source.tree):
            if isinstance(node, ast.Attribute) and node.attr in ASKS and isinstance(node.ctx, ast.Load):
                asking.add(source.path)
                if source.path not in places:
                    complaints.append(source.complaint(node.lineno, f"{node.attr} asks Raft for leadership"))
    return complaints + [f"{path} asks no more: take it from the table" for path in places if path not in asking]


RULES = (leader_checks,)
"""Run on every Python file; they check those of the product."""
