"""Tables that show what a node knows: of itself, its cluster, the schema and the topology."""
