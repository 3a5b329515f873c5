"""One frozen description of the cluster, its transitions as tables, and who serves what. Pure."""
