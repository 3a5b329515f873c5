"""The bulk process of a node: long work on files, beside the shards and never on their loops."""
