"""The decision table of the merge, row by row, in both argument orders."""

import pytest

from ebla.model.errors import InvalidRequest
from ebla.settings_store.entry import Entry, decode_entries, encode_entries
from ebla.settings_store.merge import NEVER_PURGED, merge
from ebla.settings_store.notation import format_entry, parse_entry

CASES = [
    # case of the reference, local, remote, row, result, pushed
    (1, "0|{a:(1,10)}|x", "0|{a:(1,10)}|x", 1, "0|{a:(1,10)}|x", False),
    (2, "0|{a:(1,10)}|x", "0|{a:(2,12)}|y", 2, "0|{a:(2,12)}|y", False),
    (3, "0|{a:(2,12)}|y", "0|{a:(1,10)}|x", 3, "0|{a:(2,12)}|y", False),
    (4, "0|{a:(1,10)}|x", "0|{b:(1,12)}|y", 6, "0|{a:(1,10), b:(1,12)}|y", True),
    (5, "0|{a:(1,12)}|y", "0|{b:(1,12)}|x", 7, "0|{a:(1,12), b:(1,12)}|y", True),
    (5, "0|{a:(1,12)}|y", "0|{a:(1,12)}|x", 7, "0|{a:(1,12)}|x", True),
    (6, "0|{a:(1,10)}|x", "0|{b:(1,12)}|x", 4, "0|{a:(1,10), b:(1,12)}|x", True),
    (6, "0|{a:(1,10)}|D", "0|{b:(1,12)}|D", 4, "0|{a:(1,10), b:(1,12)}|D", True),
    (6, "0|{a:(1,10)}|x", "0|{a:(1,12)}|x", 4, "0|{a:(1,12)}|x", True),
    (7, "0|{a:(2,20)}|D", "0|{b:(1,10)}|y", 5, "0|{b:(1,10)}|y", False),
    (8, "0|{a:(2,20)}|D", "0|{a:(1,10)}|y", 3, "0|{a:(2,20)}|D", False),
    (10, "0|{}|x", "0|{a:(1,5)}|y", 2, "0|{a:(1,5)}|y", False),
    (12, "0|{a:(3,130)}|x", "100|{b:(1,120)}|y", 8, "0|{a:(3,130)}|x", False),
    (13, "0|{a:(3,120)}|x", "100|{b:(1,120)}|y", 8, "100|{b:(1,120)}|y", False),
    (15, "0|{a:(4,120)}|D", "100|{b:(1,120)}|y", 8, "100|{b:(1,120)}|y", False),
    (15, "0|{a:(4,130)}|D", "100|{b:(1,120)}|y", 8, "0|{a:(4,130)}|D", False),
]
MIRRORED = {2: 3, 3: 2}


@pytest.mark.parametrize(("number", "local", "remote", "row", "result", "pushed"), CASES)
def test_table(number: int, local: str, remote: str, row: int, result: str, pushed: bool) -> None:
    there, back = ((local, remote), (remote, local))
    for (one, other), expected_row in ((there, row), (back, MIRRORED.get(row, row))):
        merged = merge(parse_entry(one), parse_entry(other), 0)
        assert (format_entry(merged.entry), merged.row, merged.pushed) == (result, expected_row, pushed)


@pytest.mark.parametrize(
    ("local", "remote", "until", "result"),
    [
        ("-", "0|{a:(2,99)}|D", 100, "-"),
        ("-", "0|{a:(2,100)}|D", 100, "-"),
        ("-", "0|{a:(2,101)}|D", 100, "0|{a:(2,101)}|D"),
        ("-", "101|{a:(2,99)}|D", 100, "101|{a:(2,99)}|D"),
        ("-", "0|{a:(1,50)}|x", 100, "0|{a:(1,50)}|x"),
        ("0|{a:(1,50)}|x", "0|{a:(2,99)}|D", 100, "0|{a:(1,50)}|x"),
        ("0|{a:(1,50)}|x", "-", 100, "0|{a:(1,50)}|x"),
        ("-", "-", 100, "-"),
        ("-", "0|{a:(2,0)}|D", NEVER_PURGED, "0|{a:(2,0)}|D"),
    ],
)
def test_absent_sides_and_filter(local: str, remote: str, until: int, result: str) -> None:
    merged = merge(parse_entry(local), parse_entry(remote), until)
    assert (format_entry(merged.entry), merged.row, merged.pushed) == (result, 0, False)


def test_three_way_cycle() -> None:
    """The order of exchanges decides; each pair agrees."""
    a, b, c = map(parse_entry, ("0|{a:(2,12)}|D", "5|{b:(1,10)}|y", "0|{c:(1,8)}|z"))
    assert (merge(a, b, 0).entry, merge(b, c, 0).entry, merge(c, a, 0).entry) == (a, b, c)


def test_not_associative() -> None:
    p, q, r = map(parse_entry, ("0|{a:(1,102)}|z", "0|{c:(1,104)}|x", "0|{c:(2,104)}|z"))
    left, right = merge(merge(p, q, 0).entry, r, 0).entry, merge(p, merge(q, r, 0).entry, 0).entry
    assert left is not None
    assert right is not None
    assert (left.value, right.value) == (b"x", b"z")


def test_purge_timestamp_of_zero_is_not_encoded() -> None:
    plain = Entry(b"x", (), 0)
    assert encode_entries([("k", plain)]) == b"\x91\x92\xa1k\x92\xc4\x01x\x90"
    for entry in (plain, Entry(None, (), 7)):
        assert decode_entries(encode_entries([("k", entry)])) == [("k", entry)]


@pytest.mark.parametrize(
    "text", ["", "x", "0|{a}|x", "0|{a:(1,10),}|x", "0|{a:(1,1), a:(2,2)}|x", "0|{12345678901234567:(1,1)}|x"]
)
def test_wrong_notation(text: str) -> None:
    with pytest.raises(InvalidRequest):
        parse_entry(text)
