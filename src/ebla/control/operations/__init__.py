"""Operations at work: the run on the leader, the requests that lead to it, the janitor, and what operators see."""
