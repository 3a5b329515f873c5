"""A tablet replica as a stack of sorted layers, an LSM tree: store, stacks, commit log, manifest."""
