"""Record types that stand in group 0: jobs, writes of tables, the pipeline's state."""
