"""Bugs of tokens and ranges: a row that goes to the wrong replicas is lost."""

from tests.mutations.framework import Mutation, PytestCheck

COLUMNS = PytestCheck("tests/unit/model/test_token_columns.py", "tests/properties/test_tokens.py")
RANGES = PytestCheck("tests/unit/model/test_token.py", "tests/properties/test_tokens.py")

MUTATIONS = (
    Mutation(
        name="token-unsigned-tail",
        module="ebla.model.murmur3",
        function="_signed_word",
        find="signed = byte - 256 if byte > 127 else byte",
        replace="signed = byte",
        check=RANGES,
        why="keys with a byte above 127 in the tail go to other replicas than those the driver chooses",
    ),
    Mutation(
        name="token-column-unsigned-tail",
        module="ebla.model.token_columns",
        function="_hash_rows",
        find="first ^= _mix(_signed(_word(rows, body_end)), (_C1, 31, _C2))",
        replace="first ^= _mix(_word(rows, body_end), (_C1, 31, _C2))",
        check=COLUMNS,
        why="Spark would write rows where CQL does not read them",
    ),
    Mutation(
        name="token-column-minimum-kept",
        module="ebla.model.token_columns",
        function="tokens_of_rows",
        find="tokens[tokens == TOKEN_MIN] = TOKEN_MAX",
        replace="pass",
        check=COLUMNS,
        why="a key that hashes to the minimum token is in no range",
    ),
    Mutation(
        name="token-range-end-excluded",
        module="ebla.model.token",
        function="TokenRange.__contains__",
        find="return self.start < token <= self.end",
        replace="return self.start < token < self.end",
        check=RANGES,
        why="a key on the border between two tablets is in neither",
    ),
    Mutation(
        name="token-range-start-included",
        module="ebla.model.token",
        function="TokenRange.__contains__",
        find="return token > self.start or token <= self.end",
        replace="return token >= self.start or token <= self.end",
        check=RANGES,
        why="a key on the border of the wrapping range is in two ranges",
    ),
    Mutation(
        name="token-split-misses-remainder",
        module="ebla.model.token",
        function="TokenRange.split",
        find="width * part // count",
        replace="width // count * part",
        check=RANGES,
        why="tokens at the top of the ring would be in no tablet",
    ),
)
