"""The guide's tables are those of the code."""

from pathlib import Path

import msgspec

from ebla.settings_store.purge import PurgeResult
from ebla.settings_store.registry import SETTINGS, Setting, describe_kind

GUIDE = (Path(__file__).parents[3] / "docs" / "settings.md").read_text()


def row_of(setting: Setting[object]) -> str:
    default = msgspec.json.encode(setting.default).decode()
    return (
        f"| `{setting.name}` | {describe_kind(setting.kind)} | `{default}` | {setting.scope.value} | {setting.help} |"
    )


def test_every_setting_has_its_row() -> None:
    section = GUIDE.partition("## The settings")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| `")]
    assert rows == [row_of(setting) for setting in SETTINGS]


def test_every_result_has_its_row() -> None:
    section = GUIDE.partition("## What to do about a result")[2]
    named = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    missing = [result for result in PurgeResult if not any(f"`{result}`" in cell for cell in named)]
    assert not missing
