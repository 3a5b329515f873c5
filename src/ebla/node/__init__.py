"""The composition root: the processes of a node, put together from their parts and real implementations."""
