"""INV-FORM-1 counts histories, not how often one was created."""

from ebla.sim.checkers.group0 import ClusterFoundings


def test_the_same_history_again_is_no_second_cluster() -> None:
    foundings = ClusterFoundings()
    assert not foundings.first.is_set()
    foundings.record_founder("h1", "a")
    foundings.record_founder("h1", "a")
    assert foundings.first.is_set()
    assert foundings.founder == "a"
    assert foundings.violation() is None


def test_another_history_is() -> None:
    foundings = ClusterFoundings()
    foundings.record_founder("h1", "a")
    foundings.record_founder("h2", "b")
    assert foundings.violation() == "INV-FORM-1: 2 clusters were created: h1 by a, h2 by b"
