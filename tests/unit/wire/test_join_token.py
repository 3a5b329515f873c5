"""Join tokens: a string that comes back, and every change of it refused."""

import pytest

from ebla.model.errors import InvalidRequest, Refused
from ebla.sim.rng import SimRng
from ebla.wire.join_token import make_join_token, parse_join_token

KEY = b"k" * 32
FINGERPRINT = bytes(range(32))


def test_a_token_comes_back_and_is_good_until_it_ends() -> None:
    token = make_join_token(KEY, FINGERPRINT, 1000, SimRng("test"))
    assert len(str(token)) == 70
    back = parse_join_token(f" {token}\n")
    assert back == token
    assert back.names_authority(FINGERPRINT)
    assert not back.names_authority(bytes(32))
    back.check(KEY, 999)
    with pytest.raises(Refused, match="expired"):
        back.check(KEY, 1000)
    with pytest.raises(Refused, match="not of this cluster"):
        back.check(b"other", 999)


def test_every_changed_byte_is_noticed() -> None:
    text = str(make_join_token(KEY, FINGERPRINT, 1000, SimRng("test")))
    for position in range(len(text)):
        for changed in ("A", "_", "!"):
            if text[position] == changed:
                continue
            with pytest.raises((InvalidRequest, Refused)):
                parse_join_token(text[:position] + changed + text[position + 1 :]).check(KEY, 1)


@pytest.mark.parametrize("text", ["", "ebla-join-", "ebla-join-AAAA", "x" * 70, "ebla-join-" + "é" * 60])
def test_other_texts_are_no_tokens(text: str) -> None:
    with pytest.raises(InvalidRequest, match="not a join token"):
        parse_join_token(text)


def test_the_secret_does_not_show_in_a_repr() -> None:
    token = make_join_token(KEY, FINGERPRINT, 1000, SimRng("test"))
    assert "code" not in repr(token)
