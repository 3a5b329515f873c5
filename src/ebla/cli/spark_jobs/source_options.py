"""The options of `format("ebla")` by which a Spark job reaches a cluster, made from a command's flags."""

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ebla.cli.cluster.local_cluster import LocalNode, find_nodes
from ebla.cli.command import OutputFlags
from ebla.cli.flags import (
    DATA_DEFAULT,
    AuthorityFlag,
    ContactFlag,
    Data,
    PasswordFile,
    UserFlag,
    read_password,
    split_table_name,
)
from ebla.cli.spark_jobs.user_spark import MASTER_DEFAULT, ConfFlag, MasterFlag, UserSpark, user_spark
from ebla.model.errors import InvalidRequest
from ebla.options import Authenticator, ClientTls
from ebla.source.contact_points import CqlClient
from ebla.source.options import OptionSide, OptionValues, TableAccess, parse_table_access
from ebla.source.suggestions import describe_table
from ebla.wire.table_calls import DescribeTableAnswer


@dataclass(frozen=True, kw_only=True)
class ClusterFlags(OutputFlags):
    """The flags of commands that run Spark jobs: where they run, and which cluster they use."""

    master: MasterFlag = MASTER_DEFAULT
    conf: ConfFlag = None
    data: Data = DATA_DEFAULT
    contact: ContactFlag = None
    username: UserFlag = None
    password_file: PasswordFile = None
    tls_authority: AuthorityFlag = None

    def user_spark(self) -> UserSpark:
        return user_spark(self.master, self.conf or (), os.environ, sys.executable)


def source_options(flags: ClusterFlags) -> dict[str, str]:
    """Raises `InvalidRequest` if the flags name no cluster."""
    if flags.contact is not None:
        options = {"contact": flags.contact}
        if flags.tls_authority is not None:
            options |= {"ssl": "true", "ssl.ca": str(flags.tls_authority.absolute())}
    else:
        options = options_of_nodes(find_nodes(flags.data), flags)
    if flags.username is not None:
        options |= {"username": flags.username, "password": read_password(flags.password_file)}
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
    with CqlClient(access.contact) as client:
        return describe_table(client, access)


def table_access_options(options: Mapping[str, str], table: str) -> TableAccess:
    keyspace, name = split_table_name(table)
    return parse_table_access(OptionValues({**options, "keyspace": keyspace, "table": name}, OptionSide.BOTH))


def _host(address: str) -> str:
    return f"[{address}]" if ":" in address else address
