"""Rows that tests stage."""

from tests.unit.storage.store_rig import plain

ITEMS = sorted(plain(partition, row, 5 + partition) for partition in range(20) for row in range(3))
