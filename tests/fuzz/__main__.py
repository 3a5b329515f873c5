"""`python -m tests.fuzz MINUTES [SEED]`: mutates the statements of the corpus at random and runs them.

A statement that raises anything but an `EblaError`, or that takes a turn longer than the limit, is printed and ends the
run with status 1."""

import random
import sys
import time

from tests.fuzz.cql_corpus import ACCEPTED, REFUSED, TABLE, TEXT_BYTES
from tests.fuzz.longest_turn import longest_turn
from tests.unit.cql.world import Cql

from ebla.model.errors import EblaError

PIECES = ("'", '"', "$$", "/*", "*/", "--", *"()[]{},;?:-+*", ":a", "1e9", "NaN", " AND ", "µ")


def mutated(text: str, rng: random.Random) -> str:
    for _ in range(rng.randint(1, 8)):
        start = rng.randrange(len(text) + 1)
        end = min(len(text), start + rng.choice((0, 1, 10, 1_000)))
        piece = rng.choice((*PIECES, text[start:end] * rng.choice((1, 2, 50))))
        text = text[:start] + piece + text[rng.choice((start, end)) :]
    return text[:TEXT_BYTES]


def main(minutes: float, seed: int) -> int:
    rng = random.Random(seed)  # repeatable on purpose
    corpus = [*ACCEPTED.values(), *REFUSED.values()]
    cql = Cql()
    cql.run(TABLE)
    ends_s, count = time.monotonic() + minutes * 60, 0
    while time.monotonic() < ends_s:
        text, count = mutated(rng.choice(corpus), rng), count + 1
        cql.rows_store.tables.clear()
        try:
            with longest_turn() as turn:
                cql.run(text)
        except EblaError:
            pass
        except Exception as error:  # a defect: shown with its statement
            print(f"{type(error).__name__}: {error}\n{text[:2_000]!r}")
            return 1
        if not turn.is_short:
            print(f"a turn of {turn.cpu_s * 1000:.0f} ms\n{text[:2_000]!r}")
            return 1
    print(f"{count} statements, seed {seed}: no defect")
    return 0


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1))
