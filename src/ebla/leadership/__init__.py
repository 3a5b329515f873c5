"""Leader leases and leader activities: what a node promises, what the leader may count on, and what may run. Pure."""
