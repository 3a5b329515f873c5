"""What people and machines see: events, stories, metrics."""
