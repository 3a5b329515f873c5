"""A deterministic world in which real code runs under virtual time and harsh faults."""
