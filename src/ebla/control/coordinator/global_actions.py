"""What the coordinator does for a global request. Every action can be repeated, by this leader or the next."""

from ebla.control.coordinator.coordinator_deps import CoordinatorRun
from ebla.control.coordinator.node_actions import NodeActions
from ebla.control.fault_points import FaultPoint
from ebla.topology.cdc_generations import (
    committed_generations,
    generation_commits,
    generation_data,
    generation_parts,
    generation_ranges,
    is_optimal,
    ring_owners,
    why_too_large,
)
from ebla.topology.commands import FinishGlobalRequest, StartCdcCommit
from ebla.topology.snapshot import GenerationId, GlobalRequest, Snapshot
from ebla.topology.states import RequestOutcome


class GlobalActions:
    """`check_and_repair_cdc_streams`: the newest generation must have exactly the vnodes of the ring."""

    def __init__(self, run: CoordinatorRun, nodes: NodeActions) -> None:
        self._run = run
        self._deps = run.deps
        self._nodes = nodes

    async def drive(self, request: GlobalRequest) -> None:
        if request.outcome is RequestOutcome.RUNNING:
            await self._commit_generation(request)
        elif _is_complete(self._run.snapshot):
            await self._finish(request, "")
        else:
            await self._write_generation(request)

    async def _write_generation(self, request: GlobalRequest) -> None:
        rng = self._deps.topology.rng
        parts = generation_parts(generation_ranges(ring_owners(self._run.snapshot), rng))
        if why := why_too_large(parts):
            await self._finish(request, why)
            return
        generation = GenerationId(bytes=rng.bytes(16))
        *first, last = generation_commits(generation, parts)
        for commands in first:
            await self._run.commit(commands)
        await self._run.commit((*last, StartCdcCommit(request.id, generation)))

    async def _commit_generation(self, request: GlobalRequest) -> None:
        await self._deps.reach(FaultPoint.COMMIT_CDC_GENERATION_ENTERED)
        fence = await self._nodes.barrier(request.id)
        await self._deps.reach(FaultPoint.COMMIT_CDC_GENERATION_AFTER_BARRIER)
        await self._deps.reach(FaultPoint.COMMIT_CDC_GENERATION_BEFORE_COMMIT)
        await self._run.commit((self._nodes.generation_commit(fence),))

    async def _finish(self, request: GlobalRequest, error: str) -> None:
        await self._run.commit((FinishGlobalRequest(request.id, error, self._deps.topology.now_ms()),))


def _is_complete(snapshot: Snapshot) -> bool:
    committed = committed_generations(snapshot)
    tokens = [token for node in ring_owners(snapshot) for token in node.tokens]
    return bool(committed) and is_optimal(generation_data(snapshot, committed[-1].generation), tokens)
