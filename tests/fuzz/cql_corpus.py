"""Statements that are large, deep or never closed. Each took a shard down, or could, before it was bounded."""

from collections.abc import Mapping

from ebla.options import DEFAULT_LIMITS

TEXT_BYTES = DEFAULT_LIMITS.cql_statement_bytes_max - 200
TOKENS = DEFAULT_LIMITS.cql_tokens_max

TABLE = (
    "CREATE TABLE t (k int PRIMARY KEY, v text, n varint, l list<int>, e set<int>, m map<int, int>, "
    "f frozen<list<frozen<set<int>>>>)"
)


def _numbers(count: int) -> str:
    return ",".join(map(str, range(count)))


def _value(text: str) -> str:
    return f"INSERT INTO t (k, v) VALUES (1, {text})"


ACCEPTED: Mapping[str, str] = {
    "a string": _value(f"'{'x' * TEXT_BYTES}'"),
    "doubled quotes": _value(f"'{chr(39) * (TEXT_BYTES // 2 * 2)}'"),
    "dollars": _value(f"$${'$x' * (TEXT_BYTES // 2)}$$"),
    "a comment": f"/*{'*' * TEXT_BYTES}*/ SELECT * FROM t",
    "spaces": " " * TEXT_BYTES + "SELECT * FROM t",
    "a list": f"INSERT INTO t (k, l) VALUES (1, [{_numbers(TOKENS // 2 - 20)}])",
    "a set": f"INSERT INTO t (k, e) VALUES (1, {{{_numbers(TOKENS // 2 - 20)}}})",
    "a map": f"INSERT INTO t (k, m) VALUES (1, {{{','.join(f'{n}:{n}' for n in range(TOKENS // 4 - 20))}}})",
    "a read of many keys": f"SELECT k FROM t WHERE k IN ({_numbers(TOKENS // 2 - 20)})",
    "a write of many keys": f"UPDATE t SET v = 'a' WHERE k IN ({_numbers(TOKENS // 2 - 20)})",
    "a batch": f"BEGIN UNLOGGED BATCH {'INSERT INTO t (k) VALUES (1);' * (TOKENS // 12)} APPLY BATCH",
    "a select list": f"SELECT {','.join(['writetime(v)'] * 1_000)} FROM t",
    "many operators": f"INSERT INTO t (k) VALUES ({'1+' * 1_000}1)",
    "changes of a map": f"UPDATE t SET {','.join(f'm[{n}] = 1' for n in range(TOKENS // 7 - 20))} WHERE k = 1",
}

REFUSED: Mapping[str, str] = {
    "an open string": f"INSERT INTO t (k, v) VALUES (1, '{chr(39) * 2 * (TEXT_BYTES // 2)}",
    "an open name": f'INSERT INTO t (k, "{chr(34) * 2 * (TEXT_BYTES // 2)}',
    "open dollars": f"INSERT INTO t (k, v) VALUES (1, $${'$x' * (TEXT_BYTES // 2)}",
    "an open comment": f"/*{'x' * TEXT_BYTES}",
    "open comments": "/* " * (TEXT_BYTES // 3),
    "empty comments": "/**/" * (TEXT_BYTES // 4),
    "semicolons": ";" * TEXT_BYTES,
    "digits": f"INSERT INTO t (k) VALUES ({'1' * TEXT_BYTES})",
    "digits and a letter": f"INSERT INTO t (k) VALUES ({'1' * TEXT_BYTES}x)",
    "units": f"INSERT INTO t (k) VALUES ({'1d' * (TEXT_BYTES // 2)}x)",
    "a long duration": f"INSERT INTO t (k) VALUES ({'1' * 5_000}d)",
    "hexadecimal digits": f"INSERT INTO t (k) VALUES (0x{'a' * TEXT_BYTES}z)",
    "a long name": f"SELECT {'a' * TEXT_BYTES} FROM t",
    "an unknown column": f'SELECT "{chr(34) * 2 * (TEXT_BYTES // 2)}" FROM t',
    "too many operators": f"INSERT INTO t (k) VALUES ({'1+' * (TOKENS // 2 - 20)}1)",
    "operators beyond the tokens": f"INSERT INTO t (k) VALUES ({'1+' * 100_000}1)",
    "a product": f"INSERT INTO t (k, n) VALUES (1, {'*'.join(['9' * 999] * 200)})",
    "a product of long numbers": f"INSERT INTO t (k, n) VALUES (1, {'*'.join(['9' * 4_000] * 200)})",
    "a list beyond the tokens": f"INSERT INTO t (k, l) VALUES (1, [{_numbers(120_000)}])",
    "keys beyond the tokens": f"SELECT k FROM t WHERE k IN ({_numbers(60_000)})",
    "a batch beyond the tokens": f"BEGIN UNLOGGED BATCH {'INSERT INTO t (k) VALUES (1);' * 30_000} APPLY BATCH",
    "a nested type": f"CREATE TABLE x (k int PRIMARY KEY, v {'frozen<list<' * 3_000}int{'>>' * 3_000})",
    "parentheses": f"INSERT INTO t (k) VALUES ({'(' * (TOKENS - 20)}",
    "brackets": f"INSERT INTO t (k, l) VALUES (1, {'[' * (TOKENS - 20)}",
    "braces": f"INSERT INTO t (k, e) VALUES (1, {'{' * (TOKENS - 20)}",
    "minus signs": f"INSERT INTO t (k) VALUES ({'- ' * (TOKENS - 20)}1)",
    "nested calls": f"INSERT INTO t (k) VALUES ({'f(' * (TOKENS // 2 - 20)}",
    "conditions in parentheses": f"SELECT * FROM t WHERE {'(' * (TOKENS - 20)}",
    "columns": f"CREATE TABLE x (k int PRIMARY KEY, {','.join(f'c{n} int' for n in range(TOKENS // 3 - 20))})",
    "the same condition": f"SELECT * FROM t WHERE {' AND '.join(['k = 1'] * (TOKENS // 4 - 20))}",
    "a long select list": f"SELECT {','.join(['v'] * (TOKENS // 2 - 20))} FROM t",
    "the same column": f"INSERT INTO t ({','.join(['k'] * (TOKENS // 4))}) VALUES ({','.join(['1'] * (TOKENS // 4))})",
}
