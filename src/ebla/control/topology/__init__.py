"""The topology feed to the node's processes, barriers, schema changes, sessions."""
