"""The example register's journal: every prefix and every flipped byte of it."""

from ebla.sim.register import LastAnswer, RegisterState, last_record, record_of

FIRST = RegisterState(promised=4, epoch=4, sequence=1, value=5, answers=(LastAnswer("k", 1, 5),))
SECOND = RegisterState(promised=7, epoch=4, sequence=2, value=6, answers=(LastAnswer("k", 2, 6),))


def test_the_last_whole_record_counts() -> None:
    one, two = record_of(FIRST), record_of(SECOND)
    assert last_record(b"") is None
    assert last_record(one + two) == SECOND
    for length in range(len(one)):
        assert last_record(one[:length]) is None
    for length in range(len(two)):
        assert last_record(one + two[:length]) == FIRST


def test_zeros_are_no_record() -> None:
    assert last_record(bytes(100)) is None
    assert last_record(record_of(FIRST) + bytes(100)) == FIRST


def test_a_flipped_byte_is_noticed() -> None:
    one, two = record_of(FIRST), record_of(SECOND)
    for position in range(len(two)):
        broken = bytearray(two)
        broken[position] ^= 0xFF
        assert last_record(one + bytes(broken)) == FIRST
