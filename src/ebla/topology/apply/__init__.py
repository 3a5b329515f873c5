"""Commands applied to a snapshot, by kind."""
