"""Which bytes are sent on their way, and when."""

from ebla.runtime.disk_syncs import WriteBehind

FILE = 7


def test_every_so_many_bytes_in_a_row_begin_once() -> None:
    begun: list[tuple[int, int, int]] = []
    behind = WriteBehind(100, lambda *span: begun.append(span))
    for offset in range(0, 250, 50):
        behind.wrote(FILE, offset, 50)
    assert begun == [(FILE, 0, 100), (FILE, 100, 100)]
    behind.wrote(FILE, 250, 60)
    assert begun[2:] == [(FILE, 200, 110)]


def test_a_jump_begins_a_new_row() -> None:
    begun: list[tuple[int, int, int]] = []
    behind = WriteBehind(100, lambda *span: begun.append(span))
    behind.wrote(FILE, 0, 90)
    behind.wrote(FILE, 500, 90)
    assert begun == [], "what lies between was not written"
    behind.wrote(FILE, 590, 10)
    assert begun == [(FILE, 500, 100)]
