"""What the tests of topology requests share."""

import pytest
from tests.unit.cli.cluster.topology_rig import Cluster
from tests.unit.client.topology_reports import NAMES

from ebla.cli.cluster import cdc, requests, topology, topology_reports


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    one = Cluster()
    for module in (cdc, requests, topology):
        monkeypatch.setattr(module, "fetch_report", one.fetch)
    for module in (requests, topology):
        monkeypatch.setattr(module, "local_names", lambda _data: NAMES)
    monkeypatch.setattr(requests, "choose_nodes", lambda _data, _name: ["node1", "node2"])
    monkeypatch.setattr(requests, "control_caller", one.caller)
    monkeypatch.setattr(requests, "RETRY_S", 0.001)
    monkeypatch.setattr(topology_reports, "POLL_S", 0.001)
    return one
