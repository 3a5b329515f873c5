"""The engine on an embedded Spark."""

import pytest
from tests.pipeline.engines import RunningEngine
from tests.pipeline.flight_rig import FlightRig
from tests.pipeline.transfers_contract import CONTRACTS, Contract


@pytest.mark.parametrize("contract", CONTRACTS, ids=lambda contract: contract.__name__)
def test_the_contract(embedded: RunningEngine, rig: FlightRig, contract: Contract) -> None:
    rig.transfers = embedded.engine
    rig.loop.run(contract(rig))
