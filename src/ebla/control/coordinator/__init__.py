"""The topology coordinator: drives the operations of nodes, as an activity of the leader."""
