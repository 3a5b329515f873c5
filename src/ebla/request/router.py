"""The router of a shard: it carries out the requests of clients on the replicas that the topology names."""

from ebla.request.read_router import ReadRouter
from ebla.request.router_types import RouterDeps
from ebla.request.write_router import WriteRouter


class Router:
    def __init__(self, deps: RouterDeps) -> None:
        self.writes = WriteRouter(deps)
        self.reads = ReadRouter(deps)
        self.write = self.writes.write
        self.read = self.reads.read
