"""Clients of nodes for programs outside of them: status, topology, jobs."""
