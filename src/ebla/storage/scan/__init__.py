"""Reading many rows at once."""
