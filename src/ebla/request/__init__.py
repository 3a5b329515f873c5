"""Requests of clients, routed to the replicas that a version of the topology names."""
