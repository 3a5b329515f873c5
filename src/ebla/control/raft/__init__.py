"""The shell around the Raft core: driver, log, snapshots."""
