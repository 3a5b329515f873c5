"""Whether the pipeline is to run beside this control process. Pure.

It runs where group 0 is led. Two may run for a moment, beside a leader and one that does not know yet that it is none:
what they do goes by sessions and conditional commits, so the place is a matter of economy.
"""

from collections.abc import Sequence

from ebla.control.topology.node_barrier import SHARD_PREFIX
from ebla.topology.snapshot import Node
from ebla.topology.states import NodeState
from ebla.wire.verbs import ProcessStatus

PLACE_MS = 250

_IN_THE_RING = (NodeState.NORMAL, NodeState.REBUILDING)


def should_run_pipeline(own: Node | None, processes: Sequence[ProcessStatus], *, leads: bool, runs: bool) -> bool:
    """`own`: this node as the topology has it. A start of Java takes the processor for a while: it waits until clients
    are served. One that runs is not ended because a shard is started anew."""
    if not leads or own is None or own.state not in _IN_THE_RING:
        return False
    return runs or any(process.serving for process in processes if process.name.startswith(SHARD_PREFIX))
