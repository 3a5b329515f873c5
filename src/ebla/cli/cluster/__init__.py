"""Commands that start, stop and look at a cluster."""
