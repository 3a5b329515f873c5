"""The options of `format("ebla")` by which a Spark job reaches a cluster, made from a command's flags."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ebla.cli.cluster.local_cluster import LocalNode, find_nodes
from ebla.cli.flags import read_password
from ebla.model.errors import InvalidRequest, NotFound
from ebla.options import Authenticator, ClientTls
from ebla.source.contact_points import CqlClient
from ebla.source.options import OptionSide, OptionValues, TableAccess, parse_table_access
from ebla.source.suggestions import missing_table
from ebla.wire.table_calls import DESCRIBE_TABLE, DescribeTableAnswer, DescribeTableRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFlags:
    data: Path
    contact: str | None = None
    username: str | None = None
    authority: Path | None = None


def source_options(flags: ClusterFlags) -> dict[str, str]:
    """Raises `InvalidRequest` if the flags name no cluster."""
    if flags.contact is not None:
        options = {"contact": flags.contact}
        if flags.authority is not None:
            options |= {"ssl": "true", "ssl.ca": str(flags.authority.absolute())}
    else:
        options = options_of_nodes(find_nodes(flags.data), flags)
    if flags.username is not None:
        options |= {"username": flags.username, "password": read_password()}
    return options


def options_of_nodes(nodes: Sequence[LocalNode], flags: ClusterFlags) -> dict[str, str]:
    running = [node for node in nodes if node.running_pid() is not None]
    if not running:
        raise InvalidRequest(
            f"no node of {flags.data} runs", advice="start them with `ebla up`, or name a cluster with --contact"
        )
    first = running[0].options
    if first.authenticator is Authenticator.PASSWORD and flags.username is None:
        raise InvalidRequest("these nodes require a login", advice="name a user with --username")
    addresses = (f"{_host(node.options.address)}:{node.options.ports.cql}" for node in running)
    options = {"contact": ",".join(addresses)}
    if first.client_tls is ClientTls.ON:
        options |= {"ssl": "true", "ssl.ca": str(running[0].folder.tls / "authority.pem")}
    return options


def describe(options: Mapping[str, str], table: str) -> DescribeTableAnswer:
    """Called before Spark starts, so that a mistyped table name is reported at once."""
    access = table_access_options(options, table)
    with CqlClient(access.contact) as contact:
        try:
            return contact.call(DESCRIBE_TABLE, DescribeTableRequest(access.keyspace, access.table), access.timeout_s)
        except NotFound as error:
            raise missing_table(contact, access, error) from None


def table_access_options(options: Mapping[str, str], table: str) -> TableAccess:
    keyspace, dot, name = table.partition(".")
    if not (keyspace and dot and name):
        raise InvalidRequest(f"{table!r} names no table", advice="write it as KEYSPACE.TABLE")
    return parse_table_access(OptionValues({**options, "keyspace": keyspace, "table": name}, OptionSide.BOTH))


def _host(address: str) -> str:
    return f"[{address}]" if ":" in address else address
