"""Tables in narrow terminals: no cell breaks, less important columns are left out, and texts wrap below themselves."""

import uuid

import pytest

from ebla.cli.cluster.group0 import member_rows
from ebla.cli.columns import TextColumn, fitted, joined, leave_out, line_width
from ebla.group0.members import Member, MemberRole
from ebla.model.identity import Address, HistoryId, HostId
from ebla.wire.group0_messages import Group0Report, MemberReport


def columns(**cells: list[str]) -> list[TextColumn]:
    return [TextColumn(name=name, cells=found) for name, found in cells.items()]


def test_cells_stand_below_their_names() -> None:
    left, right = columns(name=["a", "long name"], size=["1", "22"])
    right.is_right = True
    assert joined([left, right]) == ["name       size", "a             1", "long name    22"]


def test_columns_are_left_out_in_their_order_and_only_where_there_is_no_room() -> None:
    name, host, rack = columns(name=["node1"], host=["x" * 36], rack=["rack1"])
    host.drop_rank, rack.drop_rank = 1, 2
    assert leave_out([name, host, rack], line_width([name, host, rack])) == [name, host, rack]
    assert leave_out([name, host, rack], 49) == [name, rack]
    assert leave_out([name, host, rack], 5) == [name]
    assert leave_out([name, host, rack], 3) == [name], "what is important stays"


def test_the_last_column_is_text_that_wraps_below_itself() -> None:
    found = fitted(columns(name=["a", "b"], note=["one two three four five six", ""]), 26)
    assert found == ["name  note", "a     one two three four", "      five six", "b"]


def test_a_text_leaves_room_for_itself() -> None:
    name, host, note = columns(name=["a"], host=["x" * 36], note=["word " * 20])
    host.drop_rank = 1
    assert max(map(len, fitted([name, host, note], 60))) <= 60
    assert fitted([name, host, note], 60)[0].split() == ["name", "note"]


def test_a_single_column_of_text_wraps() -> None:
    assert fitted(columns(note=["y" * 30]), 20) == ["note", "y" * 20, "y" * 10]


@pytest.mark.parametrize("address", ["127.0.0.1", "192.168.100.100"])
def test_the_members_of_group_0_fit_80_columns(address: str) -> None:
    def member(number: int) -> MemberReport:
        host = HostId(uuid.UUID(int=number))
        place = Member(
            host=host, role=MemberRole.VOTER, address=Address(address, 7000), rack=f"rack{number}", release="0.1.0"
        )
        return MemberReport(place, 0)

    report = Group0Report(
        history=HistoryId(uuid.UUID(int=9)),
        role="leader",
        term=1,
        leader=HostId(uuid.UUID(int=1)),
        commit=1,
        applied=1,
        first=1,
        last=1,
        members=(member(1), member(2)),
    )
    names, rows = member_rows(report)
    made = [
        TextColumn(name=name, cells=[row[place] for row in rows], drop_rank=("release", "host").index(name) + 1)
        if name in ("release", "host")
        else TextColumn(name=name, cells=[row[place] for row in rows])
        for place, name in enumerate(names)
    ]
    lines = fitted(made, 80)
    assert len(lines) == 3
    assert max(map(len, lines)) <= 80
    assert [line.split()[1 if address.startswith("192") else 2] for line in lines[1:]] == ["leader", "voter"]
