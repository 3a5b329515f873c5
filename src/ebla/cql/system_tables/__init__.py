"""Virtual tables with the state of a node: itself, its cluster, the schema and the topology."""
