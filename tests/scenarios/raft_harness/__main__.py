"""`python -m tests.scenarios.raft_harness FILE…`: writes what is printed today into our own transcripts, for review."""

import sys
from pathlib import Path

from tests.scenarios.raft_harness.cluster import COMMANDS, Cluster
from tests.scenarios.raft_harness.transcript import rewritten

for name in sys.argv[1:]:
    path = Path(name)
    path.write_text(rewritten(path.read_text(), COMMANDS, Cluster().run))
