"""Group 0 on one node: formation, calls, the operator's verbs."""
