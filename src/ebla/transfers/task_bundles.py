"""Work becomes tasks: small pieces together, so that a task is worth its price, but enough for every slot. Pure."""

import heapq
from collections.abc import Sequence
from typing import TypeVar

from ebla.model.token import TokenRange
from ebla.model.transfers import FileMove, RowMove, TransferSource
from ebla.wire.flight_format import FILES_TOGETHER_MAX

W = TypeVar("W")

ROW_TASKS_MAX = 8
"""Of one job at a time. Two such jobs take no more streams of a node than it gives by default."""


def pack_tasks(sized: Sequence[tuple[W, int]], task_bytes: int, slots: int) -> tuple[tuple[W, ...], ...]:
    """Tasks of about so many bytes at most, as even as can be; as many for one slot as for another, if there is work
    for it: all of them wait for the last one.

    The largest pieces are dealt first, each to the task that has least: with sizes known beforehand no order of tasks
    ends much later than the best one.
    """
    assert task_bytes > 0
    if not sized:
        return ()
    total = sum(size for _, size in sized)
    rounds = max(1, -(-total // (task_bytes * slots)))
    count = min(len(sized), rounds * slots)
    loads = [(0, task) for task in range(count)]
    dealt: list[list[int]] = [[] for _ in range(count)]
    largest_first = sorted(range(len(sized)), key=lambda place: (-sized[place][1], place))
    for place in largest_first:
        load, task = heapq.heappop(loads)
        dealt[task].append(place)
        # A piece of nothing is still a stream to open.
        heapq.heappush(loads, (load + max(1, sized[place][1]), task))
    return tuple(tuple(sized[place][0] for place in sorted(places)) for places in dealt)


def pack_row_tasks(sized: Sequence[tuple[W, int]], task_bytes: int, slots: int) -> tuple[tuple[W, ...], ...]:
    """For work on rows: where there are many slots, fewer and larger ones. Each task holds a stream at every replica it
    reads and waits for its turn to write; tasks that hold what others wait for, at several nodes, would wait for each
    other."""
    if slots <= ROW_TASKS_MAX:
        return pack_tasks(sized, task_bytes, slots)
    total = sum(size for _, size in sized)
    return pack_tasks(sized, max(task_bytes, -(-total // ROW_TASKS_MAX)), ROW_TASKS_MAX)


def group_small_files(sized: Sequence[tuple[W, int]], bytes_max: int) -> list[list[W]]:
    """What moves on one stream each: several that are small, and alone what is more than half of what one may have."""
    groups: list[list[W]] = []
    small: list[W] = []
    room = bytes_max
    for one, size in sized:
        if size > bytes_max // 2:
            groups.append([one])
            continue
        if small and (size > room or len(small) == FILES_TOGETHER_MAX):
            groups.append(small)
            small, room = [], bytes_max
        small.append(one)
        room -= size
    return [*groups, small] if small else groups


def file_move_bytes(move: FileMove) -> int:
    return move.source.parts[move.part].size_bytes


def row_move_bytes(move: RowMove) -> int:
    """About: as much of each stack as the range is of its part of the ring."""
    return sum(estimate_range_bytes(source, move.range) for source in move.sources)


def estimate_range_bytes(source: TransferSource, wanted: TokenRange) -> int:
    overlapping = [part for part in source.parts if part.range.overlaps(wanted)]
    return sum(part.size_bytes * min(wanted.width, part.range.width) // part.range.width for part in overlapping)
