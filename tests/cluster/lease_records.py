"""What real nodes logged of their leases and activities, and whether it keeps INV-LEASE-4 and INV-LEASE-5.

Nodes with fault points log each effect check that was passed. All nodes of a test share one machine and its wall clock.
"""

import json
from collections.abc import Sequence
from typing import Any

from tests.cluster.conftest import LocalNodes
from tests.cluster.group0_load import ask

from ebla.cli.cluster.local_cluster import LocalNode
from ebla.model.errors import EblaError
from ebla.wire.leadership_messages import LeadershipReport, LeadershipRequest
from ebla.wire.verbs import LEADERSHIP

Record = dict[str, Any]


def records(nodes: LocalNodes) -> list[Record]:
    """The events of all nodes by time, each with the number of its node."""
    found: list[Record] = []
    for number in range(len(nodes.nodes)):
        lines = nodes.output(number).splitlines()
        found += [json.loads(line) | {"node": number} for line in lines if line.startswith("{") and line.endswith("}")]
    return sorted(found, key=lambda one: one["time"])


def named(found: Sequence[Record], event: str, *, since: str = "", **fields: object) -> list[Record]:
    return [one for one in found if one["event"] == event and one["time"] > since and fields.items() <= one.items()]


def broken_promises(found: Sequence[Record]) -> list[str]:
    newest: dict[str, int] = {}
    leases: dict[int, str] = {}
    """Of each node. A grant that could not be written ends without having begun."""
    problems: list[str] = []
    for one in found:
        match one["event"]:
            case "activity.started" if one["term"]:
                newest[one["domain"]] = max(newest.get(one["domain"], 0), one["term"])
            case "lease.granted":
                leases[one["node"]] = one["lease"]
            case "lease.ended" if leases.get(one["node"]) == one["lease"]:
                del leases[one["node"]]
            case "activity.effect" if 0 < one["term"] < newest.get(one["domain"], 0):
                problems.append(f"INV-LEASE-4: after term {newest[one['domain']]}: {one}")
            case "activity.effect" if leases.get(one["node"]) != one["lease"]:
                problems.append(f"INV-LEASE-5: the node's lease is {leases.get(one['node'])}: {one}")
            case _:
                pass
    return problems


def leadership_of(node: LocalNode) -> LeadershipReport | None:
    """None if the node does not answer."""
    try:
        return ask(node, LEADERSHIP, LeadershipRequest())
    except EblaError:
        return None


def runs_activity(report: LeadershipReport | None, domain: str = "coordinator") -> bool:
    return report is not None and any(one.domain == domain and one.state == "running" for one in report.activities)
