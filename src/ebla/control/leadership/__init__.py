"""Leases and activities at work: the lease file, the verbs, the calls for renewals, and the tasks of activities."""
