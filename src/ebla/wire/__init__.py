"""Messages between processes: frames, verbs, calls. Runs on any transport."""
