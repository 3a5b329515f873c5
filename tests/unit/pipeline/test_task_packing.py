"""Work is dealt to tasks: each piece once, no task much above its size, no slot idle while there is work for it."""

import uuid

from hypothesis import given
from hypothesis import strategies as st

from ebla.model.identity import Address, CheckpointId, HostId, ShardNumber, TableId
from ebla.model.token import TOKEN_MIN, WHOLE_RING, Token, TokenRange
from ebla.model.transfers import CheckpointFile, CheckpointLayer, CheckpointPart, TransferSource
from ebla.pipeline.spark_jobs import ROW_TASKS_MAX, pack_row_tasks, pack_tasks
from ebla.transfers.flight_client import group_small_files
from ebla.wire.flight_format import FILES_TOGETHER_MAX

MB = 1_000_000


def sizes_of(sizes: list[int], task_bytes: int = 100 * MB, slots: int = 2) -> list[list[int]]:
    dealt = pack_tasks([((place, size), size) for place, size in enumerate(sizes)], task_bytes, slots)
    return [[size for _, size in task] for task in dealt]


def test_small_ones_go_together() -> None:
    tasks = sizes_of([5 * MB] * 100)
    assert sorted(len(task) for task in tasks) == [16, 16, 17, 17, 17, 17]


def test_every_slot_gets_some() -> None:
    assert [len(task) for task in sizes_of([MB] * 10, slots=4)] == [3, 3, 2, 2]
    assert sizes_of([MB], slots=4) == [[MB]]
    assert [len(task) for task in sizes_of([0, 0, 0], slots=3)] == [1, 1, 1]


def test_a_large_one_is_alone() -> None:
    tasks = sizes_of([500 * MB, *[10 * MB] * 10])
    assert [500 * MB] in tasks


def test_nothing() -> None:
    assert sizes_of([]) == []


@given(st.lists(st.integers(0, 300), max_size=60), st.integers(1, 200), st.integers(1, 8))
def test_each_piece_is_in_one_task_and_none_is_overloaded(sizes: list[int], task_bytes: int, slots: int) -> None:
    pieces = [((place, size), size) for place, size in enumerate(sizes)]
    tasks = pack_tasks(pieces, task_bytes, slots)
    assert sorted(one for task in tasks for one in task) == sorted(piece for piece, _ in pieces)
    assert all(tasks)
    assert len(tasks) < max(slots, -(-sum(sizes) // task_bytes)) + slots
    largest = max(sizes, default=0)
    for task in tasks:
        # Dealt to the one that has least, none is above the even share by more than one piece (and its floor of 1).
        assert sum(size for _, size in task) <= sum(sizes) / len(tasks) + largest + len(task)


def source(token_range: TokenRange, size: int) -> TransferSource:
    layer = CheckpointLayer(folder="l", range=token_range, files=(CheckpointFile("f", size),))
    part = CheckpointPart(shard=ShardNumber(0), range=token_range, layers=(layer,))
    return TransferSource(
        host=HostId(uuid.UUID(int=1)),
        checkpoint=CheckpointId(uuid.UUID(int=2)),
        table=TableId(uuid.UUID(int=3)),
        parts=(part,),
        ticket=b"",
        flight=Address("127.0.0.1", 1),
    )


def test_rows_count_by_their_share_of_the_stack() -> None:
    half = TokenRange(TOKEN_MIN, Token(0))
    whole = source(WHOLE_RING, 1000)
    assert whole.estimate_bytes(half) == 500
    assert source(half, 300).estimate_bytes(WHOLE_RING) == 300
    assert source(half, 300).estimate_bytes(TokenRange(Token(1), Token(5))) == 0


def test_work_on_rows_has_few_tasks_however_many_slots_there_are() -> None:
    sized = [(place, 50) for place in range(40)]
    assert pack_row_tasks(sized, 100, 4) == pack_tasks(sized, 100, 4)
    few = pack_row_tasks(sized, 100, 32)
    assert len(few) == ROW_TASKS_MAX
    assert sorted(place for task in few for place in task) == list(range(40))
    assert len(pack_row_tasks(sized[:3], 100, 32)) == 3


def test_no_slot_is_left_over_in_the_last_round() -> None:
    assert len(sizes_of([5 * MB] * 100, slots=2)) == 6
    assert len(sizes_of([5 * MB] * 100, slots=4)) == 8
    assert len(sizes_of([150 * MB] * 3, slots=4)) == 3


def test_small_pieces_go_together_and_large_ones_alone() -> None:
    assert group_small_files([], 10) == []
    sized = [("a", 3), ("b", 6), ("c", 5), ("d", 2), ("e", 1), ("f", 0)]
    assert group_small_files(sized, 10) == [["b"], ["a", "c", "d"], ["e", "f"]]
    assert group_small_files([("a", 11)], 10) == [["a"]]
    many = [(number, 0) for number in range(FILES_TOGETHER_MAX + 1)]
    assert [len(group) for group in group_small_files(many, 10)] == [FILES_TOGETHER_MAX, 1]
