"""Bulk work of the cluster on Spark: the engine, its tasks, the jobs that use it."""
