"""Every mutation still applies: a refactoring that would disarm one fails here."""

import pytest
from tests.mutations.framework import ROOT, Mutation, PytestCheck, SimSeeds, all_mutations

from ebla.sim.scenario import all_scenarios


@pytest.mark.parametrize("mutation", all_mutations(), ids=lambda mutation: mutation.name)
def test_it_fits_its_source(mutation: Mutation) -> None:
    mutation.mutated_source()


@pytest.mark.parametrize("mutation", all_mutations(), ids=lambda mutation: mutation.name)
def test_its_check_is_there(mutation: Mutation) -> None:
    match mutation.check:
        case PytestCheck(test_ids):
            for test_id in test_ids:
                path, _, test = test_id.partition("::")
                assert (ROOT / path).exists(), test_id
                assert not test or f"def {test.partition('[')[0]}(" in (ROOT / path).read_text(), test_id
        case SimSeeds(scenario, _):
            assert scenario in all_scenarios()


def test_names_say_first_what_they_break() -> None:
    """So that `make mutations NAME=lock` runs the mutations of one thing, as `NAME=supervise` runs an area."""
    for mutation in all_mutations():
        assert "-" in mutation.name, mutation.name
        assert mutation.name == mutation.name.lower(), mutation.name
