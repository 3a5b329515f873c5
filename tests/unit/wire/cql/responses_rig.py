"""CQL events, encoded and decoded."""

import io
from typing import Any

from cassandra.protocol import EventMessage
from cassandra.protocol_features import ProtocolFeatures

FEATURES = ProtocolFeatures()


def event(body: bytes) -> Any:
    return EventMessage.recv_body(io.BytesIO(body), 4, FEATURES, {}, None, None)
