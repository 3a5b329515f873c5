"""Tokens of columns of keys: every Arrow form, slices, chunks, lengths."""

import random

import numpy as np
import pyarrow as pa
import pytest

from ebla.model.errors import InvalidRequest
from ebla.model.token import TOKEN_MAX, TOKEN_MIN, token_of
from ebla.model.token_columns import BATCH_KEYS, tokens_of, tokens_of_rows


def mixed_keys(count: int, longest: int) -> list[bytes]:
    dice = random.Random(2)
    return [dice.randbytes(dice.randrange(0, longest)) for _ in range(count)]


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.binary_view()], ids=str)
def test_keys_of_many_lengths(kind: pa.DataType) -> None:
    keys = mixed_keys(3_000, 70)
    assert tokens_of(pa.array(keys, kind)).tolist() == [token_of(key) for key in keys]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view()], ids=str)
def test_text_is_hashed_as_its_bytes(kind: pa.DataType) -> None:
    texts = ["", "ebla", "žluťoučký kůň", "粘土板" * 9]
    assert tokens_of(pa.array(texts, kind)).tolist() == [token_of(text.encode()) for text in texts]


@pytest.mark.parametrize("length", [1, 7, 8, 9, 15, 16, 17, 33])
def test_fixed_size_keys(length: int) -> None:
    dice = random.Random(length)
    keys = [dice.randbytes(length) for _ in range(500)]
    expected = [token_of(key) for key in keys]
    assert tokens_of(pa.array(keys, pa.binary(length))).tolist() == expected
    assert tokens_of(pa.array(keys, pa.binary())).tolist() == expected
    rows = np.frombuffer(b"".join(keys), np.uint8).reshape(500, length)
    assert tokens_of_rows(rows).tolist() == expected


def test_slices_and_chunks() -> None:
    keys = mixed_keys(200, 30)
    column = pa.array(keys)
    fixed = pa.array([key[:1] + b"fixed!" for key in keys if key], pa.binary(7))
    assert tokens_of(column[50:90]).tolist() == [token_of(key) for key in keys[50:90]]
    assert tokens_of(fixed[20:40]).tolist() == [token_of(key.as_py()) for key in fixed[20:40]]
    chunked = pa.chunked_array([column[:3], column[3:3], column[3:]])
    assert tokens_of(chunked).tolist() == [token_of(key) for key in keys]


def test_a_group_larger_than_a_batch() -> None:
    count = BATCH_KEYS + 3
    keys = [number.to_bytes(4 + number % 2, "big") for number in range(2 * count)]
    assert tokens_of(pa.array(keys)).tolist() == [token_of(key) for key in keys]


def test_nothing_and_empty_keys() -> None:
    assert tokens_of(pa.array([], pa.binary())).tolist() == []
    assert tokens_of(pa.chunked_array([], pa.binary())).tolist() == []
    assert tokens_of(pa.array([b"", b""])).tolist() == [TOKEN_MIN, TOKEN_MIN]
    assert tokens_of(pa.array([b""] * 2, pa.binary(0))).tolist() == [TOKEN_MIN, TOKEN_MIN]


def test_a_key_that_hashes_to_the_minimum_gets_the_maximum(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ebla.model.token_columns._hash_rows", lambda rows: np.full(len(rows), 2**63, np.uint64))
    assert tokens_of(pa.array([b"any", b"two"])).tolist() == [TOKEN_MAX, TOKEN_MAX]


def test_a_null_key_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="1 partition keys are null"):
        tokens_of(pa.array([b"a", None]))
