"""Nodes that give reports and answers from a list."""

from pathlib import Path
from typing import Any

from ebla.model.errors import EblaError
from ebla.wire.topology_messages import TopologyReport


class Cluster:
    """Gives the reports one after another, the last one again and again, and each answer once."""

    def __init__(self) -> None:
        self.reports: list[TopologyReport | EblaError] = []
        self.answers: list[Any] = []
        self.sent: list[Any] = []

    async def fetch(self, _data: Path, _node: str | None) -> TopologyReport:
        report = self.reports.pop(0) if len(self.reports) > 1 else self.reports[0]
        if isinstance(report, EblaError):
            raise report
        return report

    def caller(self, _transport: object, _node: object) -> Any:
        async def call(_verb: object, order: object, _deadline_ms: int) -> Any:
            self.sent.append(order)
            answer = self.answers.pop(0)
            if isinstance(answer, EblaError):
                raise answer
            return answer

        return call
