"""Bugs of streaming: the transfers of a ring change, their repeats, and what of them is final."""

from tests.mutations.framework import Mutation, PytestCheck

COPIES = PytestCheck("tests/unit/pipeline/test_ring_copies.py")
STREAMING = PytestCheck("tests/unit/pipeline/test_ring_streaming.py")
SERVICE = PytestCheck("tests/unit/bulk/test_transfer_service.py")
ADOPTION = PytestCheck("tests/unit/replica/test_adoption.py")
ORDERS = PytestCheck("tests/unit/control/coordinator/test_stream_orders.py")

MUTATIONS = (
    Mutation(
        name="streaming-new-transfer-id-at-a-repeat",
        module="ebla.pipeline.ring_copies",
        function="transfer_id",
        find='uuid.uuid5(session, f"{table}/{target.host}/{target.shard}/{listed}")',
        replace="uuid.uuid4()",
        check=COPIES,
        why="the next leader moves everything once more, and the stack adopts it twice",
    ),
    Mutation(
        name="streaming-grouped-by-sources",
        module="ebla.pipeline.ring_copies",
        function="_groups",
        find="for start in range(0, len(parts), size):",
        replace="parts = list(_joined(parts))\nfor start in range(0, len(parts), size):",
        check=COPIES,
        why="a source that is excluded changes the ids of all transfers",
    ),
    Mutation(
        name="streaming-one-transfer-for-each-range",
        module="ebla.pipeline.ring_copies",
        function="_groups",
        find="size = max(RANGES_PER_TRANSFER_MIN, -(-len(parts) // TRANSFERS_PER_STACK_MAX))",
        replace="size = 1",
        check=COPIES,
        why="a stack cannot remember so many adoptions, and the join never ends",
    ),
    Mutation(
        name="streaming-adopted-is-moved-again",
        module="ebla.transfers.transfer_run",
        function="_RowStaging.must_move",
        find="return not self.opened.is_done and not self.opened.is_sealed",
        replace="return True",
        check=STREAMING,
        why="a repeat moves everything once more",
    ),
    Mutation(
        name="streaming-adoption-forgotten-with-the-process",
        module="ebla.replica.adoption",
        function="ShardAdoptions.find_target",
        find="is_adopted = transfer is not None and origin_of(request.session, transfer) in stack.entry.adopted",
        replace="is_adopted = False",
        check=ADOPTION,
        why="after a restart of the bulk process layers are moved again",
    ),
    Mutation(
        name="streaming-released-is-refused",
        module="ebla.bulk.transfer_service",
        function="TransferService.open_staging",
        find="if found.is_adopted or is_released:",
        replace="if found.is_adopted:",
        check=SERVICE,
        why="a repeat fails for ever at rows that were merged",
    ),
    Mutation(
        name="streaming-excluded-source-waited-for",
        module="ebla.pipeline.ring_streaming",
        function="is_outdated",
        find="if planned.state.ignored_nodes != current.state.ignored_nodes:\n    return True",
        replace="",
        check=STREAMING,
        why="the join waits for a node that is excluded",
    ),
    Mutation(
        name="streaming-full-disk-tried-for-ever",
        module="ebla.pipeline.ring_streaming",
        function="RingStreaming._is_final",
        find="return isinstance(error, Corruption if place.is_source else DiskFull)",
        replace="return False",
        check=STREAMING,
        why="a join that can never succeed is not rolled back",
    ),
    Mutation(
        name="streaming-result-of-a-pipeline-without-a-permit",
        module="ebla.control.coordinator.stream_orders",
        function="StreamOrders._take",
        find="if self._is_acting(request.pid) and result != self.result:",
        replace="if result != self.result:",
        check=ORDERS,
        why="a pipeline that was replaced says that everything is streamed",
    ),
)
