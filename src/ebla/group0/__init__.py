"""The replicated store of the cluster: a pure state machine above Raft."""
