"""Cluster settings on a node: their store on disk, replication, reset and purge."""
