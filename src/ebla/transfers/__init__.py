"""How data moves between nodes: stage, seal, adopt; the same for every user."""
