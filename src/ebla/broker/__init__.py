"""What a node does for jobs of Spark users: it opens reads and writes of whole tables, and commits them."""
