"""The first steps of a node's process, before anything runs."""

import json
from pathlib import Path

import pytest

from ebla import node
from ebla.model.errors import Refused
from ebla.options import LogFormat, load
from ebla.runtime.data_folder import DataFolder
from ebla.runtime.first_start import found_cluster
from ebla.runtime.system_chance import SystemChance
from ebla.runtime.system_clock import SystemClock


def test_a_first_start_that_was_overtaken_takes_the_identity_it_finds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two starts at once in a fresh folder: both saw no identity, and one made it while the other waited."""

    def far_enough(_folder: DataFolder, _wait_ms: int) -> None:
        raise Refused("far enough")

    options = tmp_path / "options.toml"
    options.write_text('data = "data"\n[limits]\nfree_disk_bytes_min = 0\n')
    folder = DataFolder(tmp_path / "data")
    made = found_cluster(load(options), SystemClock(), SystemChance())
    certificate = (folder.tls / "node.pem").read_bytes()
    monkeypatch.setattr(node, "check_folder", lambda _options: None)
    monkeypatch.setattr(node, "wait_for_predecessors", far_enough)
    assert node.main(["control", "--options", str(options)]) == node.EXIT_REFUSED
    assert "far enough" in capsys.readouterr().err
    assert folder.read_identity() == made
    assert (folder.tls / "node.pem").read_bytes() == certificate


def test_the_log_is_written_as_asked(capsys: pytest.CaptureFixture[str]) -> None:
    node._reporter(SystemClock(), "control", LogFormat.JSON)("node.tried", {"answer": 42})
    node._reporter(SystemClock(), "control", LogFormat.PEOPLE)("node.tried", {"answer": 42})
    for_machines, for_people = capsys.readouterr().err.splitlines()
    line = json.loads(for_machines)
    assert (line["event"], line["subject"], line["severity"], line["answer"]) == ("node.tried", "control", "note", 42)
    assert for_people.endswith("answer=42")
