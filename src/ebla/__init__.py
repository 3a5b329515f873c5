"""Ebla: a replicated, tablet-sharded table store whose data pipeline runs on Spark."""
