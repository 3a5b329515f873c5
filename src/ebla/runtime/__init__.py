"""The real implementations of the ports, and of processes."""
