"""Bugs of the error codes: with a wrong code, a client repeats a request that must not be repeated."""

from tests.mutations.framework import Mutation, PytestCheck

MUTATIONS = (
    Mutation(
        name="error-code-inherited-against-outcome",
        module="ebla.model.error_codes",
        function="codes_of",
        find="(ancestor.outcome, ancestor.fault) == (kind.outcome, kind.fault)",
        replace="ancestor.fault == kind.fault",
        check=PytestCheck("tests/unit/model/test_error_codes.py"),
        why="drivers repeat a write that may already have happened",
    ),
    Mutation(
        name="error-code-lost-connection-unavailable",
        module="ebla.model.error_codes",
        function="",
        find="errors.ConnectionLost: _TIMEOUT",
        replace="errors.ConnectionLost: _UNAVAILABLE",
        check=PytestCheck("tests/unit/model/test_error_codes.py"),
        why="drivers repeat a write that may already have happened",
    ),
)
