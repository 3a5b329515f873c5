"""Cluster settings: entries with vector clocks, their merge, the registry of names, and a node's store. Pure."""
