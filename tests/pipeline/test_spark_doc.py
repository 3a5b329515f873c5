"""The code in docs/spark.md and the examples does what they say."""

import re
from pathlib import Path

import pytest
from tests.pipeline.small_node import SmallNode

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
CLAIM = re.compile(r"^(\S.*?)  # → (.*)$", re.MULTILINE)
BLOCKS = 10


def program_of(document: str, contact: str) -> str:
    """Joins the code blocks; the text after an arrow is the expected value of the line."""
    blocks = BLOCK.findall(document)
    assert len(blocks) == BLOCKS
    host, _, port = contact.partition(":")
    whole = "\n".join(f'print("step {number}", flush=True)\n{block}' for number, block in enumerate(blocks, 1))
    placed = whole.replace("127.0.0.1:9042", contact).replace('["127.0.0.1"], port=9042', f'["{host}"], port={port}')
    return CLAIM.sub(lambda found: f"_seen = str({found[1]}); assert _seen == {found[2]!r}, _seen", placed)


def test_the_ten_first_things(small_node: SmallNode, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(program_of((ROOT / "docs" / "spark.md").read_text(), small_node.contact))
    ended = small_node.run(str(program))
    assert ended.returncode == 0, f"{ended.stdout}\n{ended.stderr[-4000:]}"


@pytest.mark.long
def test_from_csv_to_served_rows(small_node: SmallNode) -> None:
    ended = small_node.run(str(ROOT / "examples" / "csv_to_served_rows.py"), small_node.contact)
    assert ended.returncode == 0, f"{ended.stdout}\n{ended.stderr[-4000:]}"
    assert "20000 trips with keys of their own" in ended.stdout
    assert len(re.findall(r"^bike 7: ", ended.stdout, re.MULTILINE)) == 3
    assert re.search(r"^station 12: \d+ departures, [\d.]+ minutes on average$", ended.stdout, re.MULTILINE)
