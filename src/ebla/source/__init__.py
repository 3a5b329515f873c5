"""Tables as a data source of Spark: what a user's job does, in its driver and in its tasks."""
