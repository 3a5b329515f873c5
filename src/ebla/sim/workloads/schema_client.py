"""Clients that create, alter and drop tables and keyspaces on any node."""

from collections.abc import Callable
from dataclasses import dataclass, field

from ebla.model.cql_types import parse_type
from ebla.model.errors import AlreadyExists, EblaError, NotFound, Outcome
from ebla.model.schema import Column, ColumnKind
from ebla.ports.environment import Environment
from ebla.sim.checkers.schema import AlterTableCall, CreateTableCall, DropTableCall, SchemaRecord
from ebla.sim.clients import ClientLoad
from ebla.sim.clusters.nodes import SimCluster
from ebla.topology.snapshot import Keyspace, Replication
from ebla.topology.states import Strategy
from ebla.wire.schema_messages import (
    AlterTableRequest,
    CreateKeyspaceRequest,
    CreateTableRequest,
    DropKeyspaceRequest,
    DropTableRequest,
    SchemaAnswer,
    SchemaChange,
    SchemaRequest,
)
from ebla.wire.verbs import SCHEMA

DEADLINE_MS = 4_000
THINK_S = 0.2
TABLES = (("ks", "a"), ("vn", "a"))
KEYSPACES = (
    Keyspace(
        name="ks", replication=Replication(Strategy.NETWORK_TOPOLOGY, (("dc1", 2),)), on_tablets=True, initial_tablets=8
    ),
    Keyspace(name="vn", replication=Replication(Strategy.SIMPLE, (("", 2),)), on_tablets=False),
)
"""These stay. `TEMPORARY_KEYSPACE` is created and dropped with its tables."""
TEMPORARY_KEYSPACE = Keyspace(
    name="passing",
    replication=Replication(Strategy.NETWORK_TOPOLOGY, (("dc1", 1),)),
    on_tablets=True,
    initial_tablets=2,
)
COLUMNS = (
    Column(name="k", type=parse_type("int"), kind=ColumnKind.PARTITION_KEY),
    Column(name="v", type=parse_type("text"), kind=ColumnKind.REGULAR),
)

OnSchemaAnswer = Callable[[SchemaAnswer], None]


@dataclass(slots=True, kw_only=True)
class SchemaLoad(ClientLoad):
    cluster: SimCluster
    begin: Callable[[], OnSchemaAnswer]
    """Called before each change. Its result is called with the answer."""
    record: SchemaRecord = field(default_factory=SchemaRecord)
    columns: int = 0


class SchemaClient:
    def __init__(self, environment: Environment, name: str, load: SchemaLoad) -> None:
        self._rng = environment.rng
        self._name = name
        self._load = load
        self._nodes = load.cluster.connection(environment, name)

    async def run(self) -> None:
        await self._load.keep_calling(self._try, self._rng, THINK_S)

    async def _try(self) -> None:
        if self._rng.random() < 0.2:
            self._nodes.leave()
        try:
            await self._act()
        except EblaError:
            pass  # the history has its outcome

    async def submit(self, change: SchemaChange, deadline_ms: int = DEADLINE_MS) -> SchemaAnswer:
        await self._nodes.open()
        answered = self._load.begin()
        answer = await self._nodes.call(SCHEMA, SchemaRequest(change), deadline_ms)
        answered(answer)
        self._load.record.answered += 1
        return answer

    async def _act(self) -> None:
        keyspace, name = self._rng.choice(TABLES)
        kind = self._rng.randrange(0, 100)
        lenient = self._rng.random() < 0.3
        if kind < 40:
            await self._note(
                CreateTableCall(),
                CreateTableRequest(keyspace=keyspace, name=name, columns=COLUMNS, if_not_exists=lenient),
            )
        elif kind < 65:
            await self._note(DropTableCall(), DropTableRequest(keyspace, name, if_exists=lenient))
        elif kind < 85:
            self._load.columns += 1
            column = f"c{self._load.columns}"
            added = Column(name=column, type=parse_type("int"), kind=ColumnKind.REGULAR)
            await self._note(AlterTableCall(column), AlterTableRequest(keyspace=keyspace, name=name, added=(added,)))
        else:
            await self._pass_by()

    async def _note(
        self,
        call: CreateTableCall | AlterTableCall | DropTableCall,
        change: CreateTableRequest | AlterTableRequest | DropTableRequest,
    ) -> None:
        history = self._load.record.history
        number = history.invoke(self._name, call, f"{change.keyspace}.{change.name}")
        try:
            answer = await self.submit(change)
        except (AlreadyExists, NotFound):
            history.complete(number, None)
            return
        except EblaError as error:
            if error.outcome is Outcome.NOT_APPLIED:
                history.withdraw(number)
            raise
        result = str(answer.table) if answer.changed else None
        if isinstance(call, AlterTableCall) and result is not None:
            self._load.record.columns.setdefault(result, []).append(call.column)
        history.complete(number, result)

    async def _pass_by(self) -> None:
        """A keyspace that is dropped with its tables. The checkers do not follow each change, only the resulting
        state."""
        kind = self._rng.randrange(0, 4)
        try:
            if kind == 0:
                await self.submit(CreateKeyspaceRequest(TEMPORARY_KEYSPACE, if_not_exists=True))
            elif kind < 3:
                name = self._rng.choice(("a", "b", "c"))
                await self.submit(
                    CreateTableRequest(keyspace=TEMPORARY_KEYSPACE.name, name=name, columns=COLUMNS, if_not_exists=True)
                )
            else:
                await self.submit(DropKeyspaceRequest(TEMPORARY_KEYSPACE.name, if_exists=True))
        except NotFound:
            pass
