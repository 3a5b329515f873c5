"""Options as Spark gives them: without case, checked, unknown ones refused with the nearest name."""

import ssl
from pathlib import Path

import pytest

from ebla.model.consistency import ConsistencyLevel
from ebla.model.errors import InvalidRequest
from ebla.model.identity import Address
from ebla.source.contact_points import parse_contacts
from ebla.source.options import OptionSide, OptionValues, parse_read_options, parse_table_access

MINIMUM = {"keyspace": "shop", "table": "orders"}


def test_what_holds_unless_said_otherwise() -> None:
    found = parse_read_options(MINIMUM)
    assert found.access.full_name == "shop.orders"
    assert found.access.contact.addresses == (Address("127.0.0.1", 9042),)
    assert found.access.level is ConsistencyLevel.LOCAL_QUORUM
    assert found.access.uses_local_files
    assert found.access.timeout_s == 60.0
    assert not found.access.contact.security.is_tls
    assert (found.columns, found.token, found.writetimes, found.ttls) == ((), "", (), ())
    assert (found.where, found.takes_filters) == ("", False)
    assert found.split_bytes == 128 << 20
    assert found.life_ms == 86_400_000


def test_all_of_them_given() -> None:
    found = parse_read_options(
        {
            "CONTACT": "10.0.0.1, 10.0.0.2:9999",
            "Keyspace": "shop",
            "table": "orders",
            "username": "me",
            "password": "secret",
            "consistency": "quorum",
            "columns": "a, b ,c",
            "token": "t",
            "writeTime": "a",
            "ttl": "b,c",
            "where": "k = 1",
            "pushdown": "TRUE",
            "split_bytes": "1.5 GB",
            "life": "90m",
            "timeout": "500ms",
            "shortcut": "no",
        }
    )
    assert found.access.contact.addresses == (Address("10.0.0.1", 9042), Address("10.0.0.2", 9999))
    assert (found.access.contact.security.username, found.access.contact.security.password) == ("me", "secret")
    assert found.access.level is ConsistencyLevel.QUORUM
    assert (found.columns, found.token, found.writetimes, found.ttls) == (("a", "b", "c"), "t", ("a",), ("b", "c"))
    assert (found.where, found.takes_filters) == ("k = 1", True)
    assert found.split_bytes == 3 << 29
    assert found.life_ms == 5_400_000
    assert found.access.timeout_s == 0.5
    assert not found.access.uses_local_files


@pytest.mark.parametrize("given", [{"table": "shop.orders"}, {"path": "shop.orders"}, {**MINIMUM, "path": ""}])
def test_ways_to_name_the_table(given: dict[str, str]) -> None:
    assert parse_read_options(given).access.full_name == "shop.orders"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "'table' is missing"),
        ({"table": "orders"}, "'keyspace' is missing"),
        ({**MINIMUM, "colums": "a"}, "no option 'colums'; did you mean 'columns'"),
        ({**MINIMUM, "zzz": "a"}, "no option 'zzz'; there are: columns, consistency, contact"),
        ({**MINIMUM, "consistency": "MOST"}, "consistency='MOST'.*LOCAL_QUORUM"),
        ({**MINIMUM, "ssl": "maybe"}, "ssl='maybe'.*true or false"),
        ({**MINIMUM, "split_bytes": "much"}, "split_bytes='much'.*128m"),
        ({**MINIMUM, "split_bytes": "0"}, "split_bytes='0'"),
        ({**MINIMUM, "life": "5 weeks"}, "life='5 weeks'.*24h"),
        ({**MINIMUM, "pushdown": "some"}, "pushdown='some'"),
        ({**MINIMUM, "contact": "a:b"}, "'b' in the contact 'a:b' is no port"),
        ({**MINIMUM, "contact": ":9042"}, "has no host"),
        ({**MINIMUM, "contact": " , "}, "names no address"),
        ({**MINIMUM, "contact": "h:70000"}, "no port"),
        ({**MINIMUM, "ssl.ca": "/no/such/file"}, "ssl.ca cannot be read"),
        ({**MINIMUM, "ssl": "true"}, "ssl is true and ssl.ca is missing"),
    ],
)
def test_mistakes_say_what_is_wrong(given: dict[str, str], words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        parse_read_options(given)


def test_an_option_of_the_other_side_says_so() -> None:
    with pytest.raises(InvalidRequest, match="'columns' is for reading, not for writing"):
        OptionValues({"columns": "a"}, OptionSide.WRITE)


def test_the_authority_travels_as_text(tmp_path: Path) -> None:
    path = tmp_path / "authority.pem"
    path.write_text("PEM")
    found = parse_table_access(
        OptionValues({**MINIMUM, "ssl": "true", "ssl.ca": str(path), "ssl.verify": "false"}, OptionSide.WRITE)
    )
    assert found.contact.security.authority_pem == "PEM"
    assert found.contact.security.is_tls
    assert not found.contact.security.verifies


def test_the_authorities_of_the_system_are_trusted_only_if_they_are_named() -> None:
    found = parse_table_access(OptionValues({**MINIMUM, "ssl": "true", "ssl.ca": "system"}, OptionSide.READ))
    context = found.contact.security.context()
    assert context is not None
    assert context.check_hostname
    assert context.verify_mode is ssl.CERT_REQUIRED


def test_addresses_of_the_newer_kind() -> None:
    assert parse_contacts("[::1]:9999,::2,[::3]") == (Address("::1", 9999), Address("::2", 9042), Address("::3", 9042))


def test_a_password_is_not_shown() -> None:
    asked = parse_read_options({"table": "ks.t", "username": "me", "password": "hunter2"})
    assert asked.access.contact.security.password == "hunter2"
    assert "hunter2" not in repr(asked)
