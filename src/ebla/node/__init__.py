"""The composition root: the processes of a node, composed from real or simulated parts."""
