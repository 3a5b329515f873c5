"""Commands that run in a user's Spark."""
