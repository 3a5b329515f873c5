"""Names and values that the registry accepts, and what its errors suggest."""

import uuid
from typing import Annotated

import msgspec
import pytest

from ebla.model.errors import InvalidRequest
from ebla.model.identity import HostId
from ebla.settings_store.registry import SETTINGS_PURGE, Registry, Scope, Setting, SettingsPurge, node_key, split_key

HOST = HostId(uuid.UUID(int=1))


class Pair(msgspec.Struct, frozen=True, kw_only=True):
    low: int = 1
    high: int = 2


PAIR = Setting(
    name="pair",
    kind=Pair,
    default=Pair(),
    scope=Scope.CLUSTER_AND_NODE,
    help="two numbers",
    problem=lambda pair: "" if pair.low < pair.high else "low is not below high",
)
WORD = Setting(
    name="word",
    kind=Annotated[str, msgspec.Meta(max_length=3)],
    default="a",
    scope=Scope.CLUSTER,
    help="a short word",
)
REGISTRY = Registry((SETTINGS_PURGE, PAIR, WORD))


def test_defaults_of_the_purge() -> None:
    assert SETTINGS_PURGE.default == SettingsPurge(interval_ms=60_000, age_ms=300_000, enabled=True)
    assert SETTINGS_PURGE.allowed() == (
        "allowed: interval_ms (1,000 to 86,400,000), age_ms (0 to 86,400,000), enabled (true or false)"
    )


@pytest.mark.parametrize(
    ("key", "value", "advice"),
    [
        ("setings_purge", b"{}", "did you mean settings_purge?"),
        ("settings_purge", b'{"age_ms":-1}', "age_ms (0 to 86,400,000)"),
        ("settings_purge", b'{"enabled":1}', "true or false"),
        ("settings_purge", b"no", "allowed"),
        ("pair", b'{"low":3}', "whole number"),
        ("word", b'"long"', "text"),
        ("user/", b"x", "user/ are free"),
        ("node/xyz/pair", b"{}", "node/<host id>/NAME"),
        (node_key(HOST, "word"), b'"a"', "for the cluster"),
    ],
)
def test_refused(key: str, value: bytes, advice: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        REGISTRY.check(key, value)
    assert advice in caught.value.advice


@pytest.mark.parametrize("key", ["user/a.b/c", node_key(HOST, "status"), node_key(HOST, "actor")])
def test_free_names(key: str) -> None:
    REGISTRY.check(key, b"\xff anything")


def test_parse() -> None:
    assert REGISTRY.parse("word", "abc") == REGISTRY.parse("word", '"abc"') == b'"abc"'
    assert REGISTRY.parse("pair", '{"high": 9}') == b'{"low":1,"high":9}'
    assert REGISTRY.parse("user/x", "text") == b"text"
    with pytest.raises(InvalidRequest, match="has no field hihg"):
        REGISTRY.parse("pair", '{"hihg": 9}')


def test_one_field() -> None:
    assert REGISTRY.split_field("pair.high") == ("pair", "high")
    assert REGISTRY.split_field(node_key(HOST, "pair") + ".low") == (node_key(HOST, "pair"), "low")
    assert REGISTRY.split_field("user/a.b") == ("user/a.b", "")
    assert REGISTRY.parse_field("pair", "high", "7", None) == b'{"low":1,"high":7}'
    newer = b'{"low":1,"high":5,"middle":[2]}'
    assert REGISTRY.parse_field("pair", "low", "4", newer) == b'{"low":4,"high":5,"middle":[2]}'
    for field, text in (("low", "9"), ("low", "x"), ("lwo", "1")):
        with pytest.raises(InvalidRequest):
            REGISTRY.parse_field("pair", field, text, None)
    with pytest.raises(InvalidRequest, match="has no fields"):
        REGISTRY.parse_field("word", "low", "1", None)


def test_stored_values_of_newer_releases_are_no_problem() -> None:
    assert not REGISTRY.problem("of_a_newer_release", b"?")
    assert not REGISTRY.problem("pair", None)
    assert "low is not below high" in REGISTRY.problem("pair", b'{"low":9}')
    assert split_key("node/1") is None
