"""Plain rows of an older version of their table in the layout of today, by vector operations and byte for byte.

`columns.py` does the same by way of typed columns, which is what a reader wants; here values stay the bytes they are.
"""

import numpy as np
import pyarrow as pa

from ebla.model.errors import Corruption
from ebla.model.schema import TableSchema
from ebla.storage.codec.row_codec import HEADER, NO_CELL, PLAIN_HEADER
from ebla.storage.columns.binary_columns import (
    ByteRun,
    Mask,
    Positions,
    ValuePart,
    as_matrix,
    byte_run,
    concat_parts,
    gather,
    gather_numbers,
    repeat_value,
    slice_values,
)

_LENGTH_BYTES = 4
_TIMESTAMP_BYTES = PLAIN_HEADER.size - HEADER.size


def upgrade_layout(schema: TableSchema, values: pa.Array, version: int) -> pa.Array:
    """Plain rows that were all written by `version`, as `row_codec` writes them today. Cells of dropped columns go."""
    run = byte_run(values)
    try:
        cells = _cells(run, schema.layouts[version - 1])
    except IndexError as error:
        raise Corruption(f"a row of {schema.full_name} cannot be read ({error})") from error
    count = len(run)
    pieces: list[ValuePart] = [
        gather(run.data, run.starts, 2),
        repeat_value(schema.version.to_bytes(2), count),
        gather(run.data, run.starts + HEADER.size, _TIMESTAMP_BYTES),
    ]
    for number in schema.layouts[-1]:
        pieces += cells.get(number) or (repeat_value(NO_CELL, count),)
    return concat_parts(pieces, count)


def _cells(run: ByteRun, layout: tuple[int, ...]) -> dict[int, tuple[ValuePart, ValuePart]]:
    """The length and the bytes of every cell, by the number of its column."""
    cells: dict[int, tuple[ValuePart, ValuePart]] = {}
    places: Positions = run.starts + PLAIN_HEADER.size
    for number in layout:
        sizes = gather_numbers(run.data, places, ">i4")
        there: Mask = sizes >= 0
        starts = places + _LENGTH_BYTES
        places = starts + np.where(there, sizes, 0)
        cells[number] = (as_matrix(sizes, ">i4"), slice_values(run, starts, places))
    if not (places == run.ends).all():
        raise IndexError("values are longer than their columns")
    return cells
