"""Values joined from parts, and taken out of columns: the same as one value after another."""

from random import Random

import numpy as np
import pyarrow as pa
import pytest

from ebla.storage.columns.binary_columns import (
    SHORT_BYTES_MAX,
    Bytes,
    ValuePart,
    as_matrix,
    concat_columns,
    concat_parts,
    repeat_value,
    take_binary,
)


def random_piece(rng: Random, count: int) -> tuple[ValuePart, list[bytes]]:
    match rng.randrange(4):
        case 0:
            value = rng.randbytes(rng.randrange(6))
            return repeat_value(value, count), [value] * count
        case 1:
            width = rng.randrange(10)
            matrix: Bytes = np.frombuffer(rng.randbytes(count * width), np.uint8).reshape(count, width)
            return matrix, [row.tobytes() for row in matrix]
        case 2:
            # Cut out of a wider one, so that its rows do not follow one another.
            wide: Bytes = np.frombuffer(rng.randbytes(count * 12), np.uint8).reshape(count, 12)
            return wide[:, 3:8], [row.tobytes() for row in wide[:, 3:8]]
        case _:
            values = [rng.randbytes(rng.randrange(30)) for _ in range(count)]
            return pa.array(values, pa.binary()), values


@pytest.mark.parametrize("seed", range(60))
def test_joined_is_every_part_of_a_value_after_the_other(seed: int) -> None:
    rng = Random(seed)
    count = rng.choice((0, 1, 2, 50))
    found = [random_piece(rng, count) for _ in range(rng.randrange(1, 7))]
    whole = concat_parts([piece for piece, _ in found], count)
    whole.validate(full=True)
    assert whole.to_pylist() == [b"".join(parts[place] for _, parts in found) for place in range(count)]


@pytest.mark.parametrize("width", [1, 19, SHORT_BYTES_MAX, SHORT_BYTES_MAX + 1, None])
@pytest.mark.parametrize("offset", [0, 3])
def test_taken_are_the_values_at_these_places(width: int | None, offset: int) -> None:
    rng = Random(7)
    values = [rng.randbytes(rng.randrange(9) if width is None else width) for _ in range(40)]
    order = np.array([rng.randrange(40 - offset) for _ in range(60)])
    found = take_binary(pa.array(values, pa.binary()).slice(offset), order)
    found.validate(full=True)
    assert found.to_pylist() == [values[offset + place] for place in order.tolist()]


def test_values_of_one_length_on_average_alone_are_not_cut() -> None:
    values = [b"a", b"bbb", b"cc"]
    assert take_binary(pa.array(values, pa.binary()), np.array([2, 0, 1])).to_pylist() == [b"cc", b"a", b"bbb"]


def test_nothing_is_taken_of_nothing() -> None:
    none = pa.array([], pa.binary())
    assert take_binary(none, np.empty(0, np.int64)).to_pylist() == []
    assert take_binary(pa.array([b"", b""], pa.binary()), np.array([1])).to_pylist() == [b""]


def test_a_single_column_is_not_copied() -> None:
    column = pa.array([b"x"], pa.binary())
    assert concat_columns([column]) is column
    assert concat_columns([column, column]).to_pylist() == [b"x", b"x"]


def test_a_matrix_of_numbers_keeps_their_order() -> None:
    assert as_matrix(np.array([1, 258]), ">u2").tobytes() == b"\0\1\1\2"
