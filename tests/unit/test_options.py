"""Options: defaults, flags, and errors that name file, key, fault and what is allowed."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from ebla import options
from ebla.model.identity import Address
from ebla.options import LogFormat, NodeLimits, NodeOptions, OptionsError

WITH_PASSWORD = {"authenticator": "password", "superuser_password_hash": "scrypt$16384$8$1$AAAA$BBBB"}


def written(folder: Path, text: str) -> Path:
    path = folder / "options.toml"
    path.write_text(text, encoding="utf-8")
    return path


def refused(table: dict[str, Any]) -> str:
    with pytest.raises(OptionsError) as caught:
        options.parse({"data": "d", **table}, "the/file.toml")
    return str(caught.value)


def test_a_file_with_only_a_folder_gives_the_defaults_and_resolves_the_folder(tmp_path: Path) -> None:
    loaded = options.load(written(tmp_path, 'data = "mine"\n'))
    assert loaded.folder == tmp_path / "mine"
    assert loaded.control_address == Address("127.0.0.1", 7000)
    assert loaded.shard_address(0) == Address("127.0.0.1", 7010)
    assert loaded.limits == NodeLimits()


def test_flags_win_over_the_file_and_take_texts_without_quotes(tmp_path: Path) -> None:
    path = written(tmp_path, 'data = "."\nshards = 2\n[limits]\nstop_ms = 4000\n')
    loaded = options.load(path, ["limits.stop_ms=1500", "address=127.9.9.9", 'peers=["127.9.9.8"]'])
    assert (loaded.shards, loaded.limits.stop_ms, loaded.address) == (2, 1500, "127.9.9.9")
    assert loaded.peer_addresses == (Address("127.9.9.8", 7000),)


@pytest.mark.parametrize(
    ("table", "parts"),
    [
        ({"shard": 2}, ["`shard` is unknown", "did you mean `shards`?"]),
        ({"limits": {"peer_silence": 1}}, ["`limits.peer_silence` is unknown", "`limits.peer_silence_ms`?"]),
        ({"zzz": 1}, ["`zzz` is unknown", "known here are data, address"]),
        ({"shards": 0}, ["`shards` is 0", "whole number from 1 to 256"]),
        ({"shards": "two"}, ["`shards` is 'two'", "whole number"]),
        ({"limits": {"stop_ms": 1}}, ["`limits.stop_ms` is 1", "from 500 to 60000"]),
        ({"limits": 3}, ["`limits` is 3", "a table [limits]"]),
        ({"cluster_name": "a b"}, ["`cluster_name` is 'a b'", "letters, digits"]),
        ({"log_format": "xml"}, ["`log_format` is 'xml'", "one of 'people', 'json'"]),
        (
            {"hidden_features": ["settings"]},
            ["`hidden_features` is ['settings']", "a list of 'settings-purge', "],
        ),
        ({"commit_log": "async"}, ["`commit_log` is 'async'", "one of 'sync', 'periodic'"]),
        ({"limits": {"compactions_max": 0}}, ["`limits.compactions_max` is 0", "from 1 to 64"]),
        ({"limits": {"write_timeout_ms": 1}}, ["`limits.write_timeout_ms` is 1", "from 10 to 600000"]),
        ({"peers": "127.0.0.1"}, ["`peers` is '127.0.0.1'", "a list of addresses"]),
        ({"peers": ["127.0.0.1:7000"]}, ["`peers` holds '127.0.0.1:7000'", "without a port"]),
        ({"address": "0.0.0.0"}, ["`address` holds '0.0.0.0'", "one machine"]),
        (
            {"limits": {"cql_request_bytes_max": 64 << 20, "shard_requests_bytes_max": 32 << 20}},
            ["`limits.cql_request_bytes_max`", "at most limits.shard_requests_bytes_max"],
        ),
        ({"limits": {"peer_heartbeat_ms": 2000}}, ["`limits.peer_silence_ms`", "twice limits.peer_heartbeat_ms"]),
        ({"limits": {"child_heartbeat_ms": 4000}}, ["`limits.feed_silence_ms`", "twice limits.child_heartbeat_ms"]),
        ({"limits": {"child_silence_ms": 4000}}, ["`limits.feed_silence_ms`", "less than limits.child_silence_ms"]),
        ({"ports": {"control": 7010}}, ["`ports.control`", "outside those of the shards"]),
        ({"pipeline": {"enabled": "yes"}}, ["`pipeline.enabled` is 'yes'", "allowed is true or false"]),
        ({"pipeline": {"user_interface": 1}}, ["`pipeline.user_interface` is 1", "allowed is true or false"]),
        ({"pipeline": {"master": "yarn"}}, ["`pipeline.master` is 'yarn'", '"local[*]"', '"spark://host:7077"']),
        ({"pipeline": {"java_home": 3}}, ["`pipeline.java_home` is 3", "a text in quotes"]),
        ({"pipeline": {"enable": True}}, ["`pipeline.enable` is unknown", "`pipeline.enabled`?"]),
    ],
)
def test_a_wrong_option_is_named_with_its_file_and_what_is_allowed(table: dict[str, Any], parts: list[str]) -> None:
    message = refused(table)
    assert message.startswith("the/file.toml: ")
    for part in parts:
        assert part in message


def test_the_log_is_for_people_unless_json_is_asked_for() -> None:
    assert options.parse({"data": "d"}, "here").log_format is LogFormat.PEOPLE
    asked = options.parse({"data": "d", "log_format": "json"}, "here")
    assert asked.log_format is LogFormat.JSON
    assert 'log_format = "json"' in options.render(asked)


def test_a_node_advertises_the_features_it_does_not_hide() -> None:
    assert options.parse({"data": "d"}, "here").features == ("leader-leases", "membership-lock", "settings-purge")
    hiding = options.parse({"data": "d", "hidden_features": ["settings-purge"]}, "here")
    assert hiding.features == ("leader-leases", "membership-lock")
    assert 'hidden_features = ["settings-purge"]' in options.render(hiding)


def test_a_missing_required_key_and_unreadable_files_are_told(tmp_path: Path) -> None:
    with pytest.raises(OptionsError, match="key `data` is missing"):
        options.parse({}, "x.toml")
    with pytest.raises(OptionsError, match=r"cannot read the options file .*absent\.toml: No such file"):
        options.load(tmp_path / "absent.toml")
    with pytest.raises(OptionsError, match="is not TOML"):
        options.load(written(tmp_path, "data = \n"))


def test_flags_go_on_top_of_ready_options_and_are_checked() -> None:
    given = NodeOptions(data="d", peers=("127.0.0.2",))
    changed = options.with_overrides(given, ["limits.stop_ms=900"], "x")
    assert changed == msgspec.structs.replace(given, limits=NodeLimits(stop_ms=900))
    with pytest.raises(OptionsError, match=r"did you mean `limits\.stop_ms`"):
        options.with_overrides(given, ["limits.stopp_ms=900"], "x")


@pytest.mark.parametrize("flag", ["limits.stop_ms", "=3", "shards.x=1"])
def test_malformed_flags_are_told(tmp_path: Path, flag: str) -> None:
    path = written(tmp_path, 'data = "."\nshards = 2\n')
    with pytest.raises(OptionsError, match="the flag --set"):
        options.load(path, [flag])


def test_a_rendered_file_reads_back_the_same(tmp_path: Path) -> None:
    given = NodeOptions(
        data=str(tmp_path / "n"), address="127.3.2.1", cluster_name="a-1", peers=("127.3.2.2",), shards=3,
        limits=NodeLimits(stop_ms=2500),
    )  # fmt: skip
    text = options.render(given)
    assert options.load(written(tmp_path, text)) == given
    assert "# peer_silence_ms = 3000" in text
    assert "\nstop_ms = 2500" in text


def test_every_limit_has_a_unit_or_count_in_its_name_and_a_default_inside_its_range() -> None:
    for field in msgspec.structs.fields(NodeLimits):
        assert field.name.endswith(("_ms", "_max", "_min")), field.name
    assert options.parse({"data": "d", "limits": msgspec.to_builtins(NodeLimits())}, "x").limits == NodeLimits()


@pytest.mark.parametrize("master", ["local", "local[*]", "local[4]", "spark://a.b:7077", "spark://a:1,b:2"])
def test_masters_that_are_allowed_survive_a_file(tmp_path: Path, master: str) -> None:
    given = options.parse({"data": str(tmp_path), "pipeline": {"master": master, "enabled": False}}, "here")
    text = options.render(given)
    assert options.load(written(tmp_path, text)) == given
    assert "\nenabled = false" in text


@pytest.mark.parametrize("master", ["", "local[0]", "spark://", "spark://a", "local[*] "])
def test_other_masters_are_refused(master: str) -> None:
    assert "`pipeline.master`" in refused({"pipeline": {"master": master}})


def test_folders_of_the_pipeline_are_taken_from_the_folder_of_the_file(tmp_path: Path) -> None:
    text = 'data = "."\n[pipeline]\nevent_log = "events"\njava_home = "/opt/java"\n'
    loaded = options.load(written(tmp_path, text))
    assert (loaded.pipeline.event_log, loaded.pipeline.java_home) == (str(tmp_path / "events"), "/opt/java")
    assert options.load(written(tmp_path, 'data = "."\n')).pipeline.event_log == ""
    elsewhere = options.load(written(tmp_path, text), ["pipeline.event_log=hdfs://a/b"])
    assert elsewhere.pipeline.event_log == "hdfs://a/b"


def test_the_bulk_process_listens_twice() -> None:
    given = NodeOptions(data="d", address="127.0.0.2")
    assert given.flight_address == Address("127.0.0.2", 7001)
    assert given.bulk_address == Address("127.0.0.2", 7002)


def test_own_address_is_no_peer() -> None:
    given = NodeOptions(data="d", address="127.0.0.2", peers=("127.0.0.3", "127.0.0.2", "127.0.0.1"))
    assert given.peer_addresses == (Address("127.0.0.1", 7000), Address("127.0.0.3", 7000))


@pytest.mark.parametrize(
    ("table", "key"),
    [
        ({"ports": {"cql": 7000}}, "ports.cql"),
        ({"ports": {"cql": 7011}, "shards": 2}, "ports.cql"),
        ({"ports": {"cql": 9042, "cql_shard_aware": 9042}}, "ports.cql"),
        ({"ports": {"cql_shard_aware": 7010}}, "ports.cql_shard_aware"),
        ({"ports": {"bulk": 7002}}, "ports.bulk"),
        ({"ports": {"bulk": 7000}}, "ports.bulk"),
        ({"ports": {"bulk_verbs": 7011}, "shards": 2}, "ports.bulk_verbs"),
        ({"ports": {"shards_from": 7001}}, "ports.bulk"),
        ({"authenticator": "password"}, "superuser_password_hash"),
        ({"superuser_password_hash": "clay"}, "superuser_password_hash"),
        ({"client_tls": "maybe"}, "client_tls"),
        ({"ignore_dead": ["127.0.0.3"]}, "ignore_dead"),
    ],
)
def test_what_does_not_fit_clients_is_told(table: dict[str, Any], key: str) -> None:
    with pytest.raises(OptionsError, match=f"`{key}`"):
        options.parse({"data": "x", **table}, "file")


def test_every_option_has_a_name_and_a_spelling() -> None:
    named = dict(options.flatten(options.parse({"data": "x", "ports": {"cql": 9999}, "peers": ["127.0.0.2"]}, "file")))
    assert named["ports.cql"] == "9999"
    assert named["peers"] == '["127.0.0.2"]'
    assert named["limits.cql_requests_max"] == "1024"


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({}, ""),
        ({"address": "::1"}, ""),
        ({"address": "192.0.2.1"}, "CQL on 192.0.2.1 is without a password and without TLS"),
        ({"address": "192.0.2.1", "client_tls": "on"}, "CQL on 192.0.2.1 is without a password"),
        ({"address": "192.0.2.1", **WITH_PASSWORD}, "CQL on 192.0.2.1 is without TLS"),
        ({"address": "192.0.2.1", "client_tls": "on", **WITH_PASSWORD}, ""),
    ],
)
def test_cql_that_others_can_reach_needs_a_password_and_tls(flags: dict[str, str], said: str) -> None:
    assert options.parse({"data": "d", **flags}, "the/file.toml").cql_exposure == said
