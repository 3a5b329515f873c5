"""Where tablets go: placement of new tables by capacity. Pure."""
